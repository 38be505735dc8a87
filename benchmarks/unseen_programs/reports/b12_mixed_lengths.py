"""Next-token model on short messages and long documents, with accumulation over length buckets."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
VOCAB, PAD = 32, -100


class Source:
    """A source of text with its own habit of which token follows which."""

    def __init__(self, seed, lengths, rows):
        self.gen = torch.Generator().manual_seed(seed)
        self.follow = torch.randperm(VOCAB, generator=self.gen)
        self.lengths = lengths
        self.rows = rows

    def micro_batch(self):
        n = torch.randint(*self.lengths, (self.rows,), generator=self.gen)
        width = int(n.max())
        ids = torch.randint(0, VOCAB, (self.rows, width + 1), generator=self.gen)
        slips = torch.rand(self.rows, width + 1, generator=self.gen) < 0.05
        for t in range(1, width + 1):
            ids[:, t] = torch.where(slips[:, t], ids[:, t], self.follow[ids[:, t - 1]])
        target = ids[:, 1:].clone()
        target[torch.arange(width) >= n[:, None]] = PAD
        return ids[:, :-1], target


def windows(sources, pattern, count):
    for _ in range(count):
        yield [sources[name].micro_batch() for name in pattern]


class NextToken(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, VOCAB))

    def forward(self, ids):
        return self.mlp(self.embed(ids))


def evaluate(model, held_out):
    model.eval()
    nll, tokens = 0.0, 0
    with torch.no_grad():
        for window in held_out:
            for ids, target in window:
                nll += F.cross_entropy(model(ids).flatten(0, 1), target.flatten(), ignore_index=PAD,
                                       reduction="sum").item()
                tokens += (target != PAD).sum().item()
    model.train()
    return nll / tokens


def main():
    torch.manual_seed(1)
    pattern = ("message", "message", "message", "document")
    sources = {"message": Source(3, (2, 7), rows=8), "document": Source(4, (50, 70), rows=8)}
    held_out = list(windows(sources, pattern, 20))
    model = NextToken()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, window in enumerate(windows(sources, pattern, 350)):
        optimizer.zero_grad()
        for ids, target in window:
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD) / len(window)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            print(f"step {step + 1} nll per token {evaluate(model, held_out):.4f}")
    print("RESULT", evaluate(model, held_out))


if __name__ == "__main__":
    main()
