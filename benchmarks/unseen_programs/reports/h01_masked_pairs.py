"""Masked-token model with one table for input and output."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
VOCAB, MASK, LENGTH = 40, 40, 24


def doubled(n, gen):
    half = torch.randint(0, VOCAB, (n, LENGTH // 2), generator=gen)
    return half.repeat_interleave(2, dim=1)


def corrupt(ids, gen, rate=0.15):
    chosen = torch.rand(ids.shape, generator=gen) < rate
    kind = torch.rand(ids.shape, generator=gen)
    noisy = ids.clone()
    noisy[chosen & (kind < 0.8)] = MASK
    swap = chosen & (kind > 0.9)
    noisy[swap] = torch.randint(0, VOCAB, (int(swap.sum()),), generator=gen)
    labels = torch.where(chosen, ids, torch.full_like(ids, -100))
    return noisy, labels


class PairEncoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB + 1, dim)
        self.positions = nn.Parameter(torch.zeros(LENGTH, dim))
        self.conv1 = nn.Conv1d(dim, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, padding=1)
        self.norm = nn.LayerNorm(dim)
        self.decoder = nn.Linear(dim, VOCAB + 1)
        self.decoder.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.1)

    def forward(self, ids):
        h = (self.tokens(ids) + self.positions).transpose(1, 2)
        h = h + self.conv2(F.gelu(self.conv1(h)))
        return self.decoder(self.norm(h.transpose(1, 2)))


def masked_loss(model, noisy, labels):
    return F.cross_entropy(model(noisy).transpose(1, 2), labels, ignore_index=-100)


def main(steps=500, batch=48):
    torch.manual_seed(1)
    gen = torch.Generator().manual_seed(2)
    val = corrupt(doubled(400, gen), torch.Generator().manual_seed(3))
    model = PairEncoder()
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        (no_decay if p.ndim == 1 or "positions" in name else decay).append(p)
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}], lr=2e-3)
    for step in range(1, steps + 1):
        noisy, labels = corrupt(doubled(batch, gen), gen)
        loss = masked_loss(model, noisy, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            with torch.no_grad():
                print(f"step {step} loss {loss.item():.4f} val {masked_loss(model, *val).item():.4f}")
    with torch.no_grad():
        print("RESULT", masked_loss(model, *val).item())


if __name__ == "__main__":
    main()
