"""Train a small transformer encoder to rate the sentiment of synthetic reviews."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

CONFIG = {
    "vocab": 80, "length": 12, "width": 32, "heads": 4, "layers": 2, "classes": 3,
    "batch": 32, "steps": 140, "lr": 2e-5, "weight_decay": 0.01, "warmup": 0.06, "seed": 24,
}
torch.manual_seed(CONFIG["seed"])


def reviews(n, polarity):
    """Words carry a polarity; a negation word turns the polarity of the next word."""
    words = torch.randint(1, CONFIG["vocab"], (n, CONFIG["length"]))
    negation = torch.rand(n, CONFIG["length"]) < 0.08
    words = torch.where(negation, torch.zeros_like(words), words)
    sign = torch.ones(n, CONFIG["length"])
    sign[:, 1:] = torch.where(words[:, :-1] == 0, -1.0, 1.0)
    score = (sign * polarity[words]).sum(1)
    label = torch.bucketize(score, torch.tensor([-1.3, 1.3]))
    return words, label


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg["vocab"], cfg["width"])
        self.places = nn.Embedding(cfg["length"], cfg["width"])
        layer = nn.TransformerEncoderLayer(
            cfg["width"], cfg["heads"], 2 * cfg["width"], dropout=0.1, batch_first=True,
            norm_first=True)
        self.layers = nn.TransformerEncoder(layer, cfg["layers"], enable_nested_tensor=False)
        self.classify = nn.Sequential(
            nn.LayerNorm(cfg["width"]), nn.Linear(cfg["width"], cfg["classes"]))

    def forward(self, words):
        place = torch.arange(words.shape[1])
        return self.classify(self.layers(self.tokens(words) + self.places(place)).mean(1))


def warmup_then_linear(step):
    warm = int(CONFIG["warmup"] * CONFIG["steps"])
    if step < warm:
        return (step + 1) / warm
    return (CONFIG["steps"] - step) / (CONFIG["steps"] - warm)


def evaluate(model, words, label):
    model.eval()
    with torch.no_grad():
        logits = model(words)
    model.train()
    accuracy = (logits.argmax(1) == label).float().mean().item()
    return F.cross_entropy(logits, label).item(), accuracy


def train(cfg):
    polarity = torch.randn(cfg["vocab"]) * (torch.rand(cfg["vocab"]) < 0.5)
    words, label = reviews(3000, polarity)
    val = reviews(500, polarity)
    model = Encoder(cfg)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=cfg["lr"], weight_decay=cfg["weight_decay"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_linear)
    for step in range(cfg["steps"]):
        idx = torch.randint(0, len(words), (cfg["batch"],))
        loss = F.cross_entropy(model(words[idx]), label[idx])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 35 == 0:
            val_loss, accuracy = evaluate(model, *val)
            print(f"step {step + 1} loss {loss.item():.4f} val {val_loss:.4f} acc {accuracy:.3f}")
    return evaluate(model, *val)[0]


print(f"RESULT {train(CONFIG):.5f}")
