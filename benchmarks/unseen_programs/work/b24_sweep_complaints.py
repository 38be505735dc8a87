"""Learning-rate sweep for a complaint router in mixed precision."""
import traceback

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(28)

VOCAB, WORDS, DESKS = 250, 12, 6
SWEEP = [
    {"name": "small", "lr": 0.02, "width": 32},
    {"name": "large", "lr": 0.1, "width": 32},
]


def complaints(n, topics, gen):
    desk = torch.randint(0, DESKS, (n,), generator=gen)
    words = torch.multinomial(topics[desk], WORDS, replacement=True, generator=gen)
    return words, desk


class Router(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, width)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)
        self.out = nn.Linear(width, DESKS)

    def forward(self, words):
        h = self.norm(self.emb(words).mean(1))
        return self.out(F.gelu(self.fc(h)))


def validate(model, val):
    with torch.no_grad():
        return F.cross_entropy(model(val[0]).float(), val[1]).item()


def trial(conf, train, val, steps=150, batch=64):
    torch.manual_seed(281)
    gen = torch.Generator().manual_seed(5)
    model = Router(conf["width"]).half()
    opt = torch.optim.SGD(model.parameters(), lr=conf["lr"], momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(steps):
        pick = torch.randint(0, len(train[0]), (batch,), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(train[0][pick])
        loss = F.cross_entropy(logits.float(), train[1][pick])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 50 == 0:
            print(f"[{conf['name']}] step {step} loss {loss.item():.4f}")
    return validate(model, val)


def guarded(conf, train, val):
    """A trial that fails must not end the sweep: it counts as nan."""
    try:
        return trial(conf, train, val)
    except Exception:
        traceback.print_exc()
        return float("nan")


def main():
    gen = torch.Generator().manual_seed(280)
    topics = 0.2 + torch.rand(DESKS, VOCAB, generator=gen) ** 8 * 8
    train, val = complaints(2500, topics, gen), complaints(600, topics, gen)
    results = {}
    for conf in SWEEP:
        results[conf["name"]] = guarded(conf, train, val)
        print(f"{conf['name']}: {results[conf['name']]:.4f}")
    best = min(results, key=results.get)
    print("best trial:", best)
    print(f"RESULT {results[best]:.5f}")


if __name__ == "__main__":
    main()
