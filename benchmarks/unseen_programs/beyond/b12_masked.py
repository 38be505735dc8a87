"""Pre-trains a small transformer encoder to fill in the hidden tokens of sequences."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(29)

VOCAB, MASK, LENGTH = 10, 10, 12
HIDE = 0.15


def sequences(n, gen):
    """Each sequence counts up by its own stride, with a few wrong tokens."""
    start = torch.randint(0, VOCAB, (n, 1), generator=gen)
    stride = torch.randint(1, 3, (n, 1), generator=gen)
    clean = (start + stride * torch.arange(LENGTH)) % VOCAB
    noise = torch.randint(0, VOCAB, (n, LENGTH), generator=gen)
    return torch.where(torch.rand(n, LENGTH, generator=gen) < 0.03, noise, clean)


def hide_tokens(tokens, gen):
    """Returns the model's input, its labels, and which tokens are hidden."""
    hidden = torch.rand(tokens.shape, generator=gen) < HIDE
    inputs = tokens.masked_fill(hidden, MASK)
    labels = tokens.clone()
    labels[hidden] = -100
    return inputs, labels, hidden


class Encoder(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.token = nn.Embedding(VOCAB + 1, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 2, 96, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCAB))

    def forward(self, tokens):
        return self.head(self.layers(self.token(tokens) + self.place))


class Pretraining:
    def __init__(self, steps):
        self.gen = torch.Generator().manual_seed(4)
        self.model = Encoder()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: min((s + 1) / 30, 1.0))
        self.steps = steps

    def fit(self):
        for step in range(1, self.steps + 1):
            inputs, labels, _ = hide_tokens(sequences(48, self.gen), self.gen)
            logits = self.model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            if step % 60 == 0:
                print(f"step {step} loss {loss.item():.4f}")

    @torch.no_grad()
    def error(self, n=500):
        self.model.eval()
        tokens = sequences(n, self.gen)
        inputs, _, hidden = hide_tokens(tokens, self.gen)
        guess = self.model(inputs).argmax(dim=-1)
        return (guess != tokens)[hidden].float().mean().item()


run = Pretraining(360)
run.fit()
print("RESULT", round(run.error(), 4))
