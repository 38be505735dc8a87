"""Bracket-depth tagger: one transformer layer applied several times, with time-major tensors."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(43)

LENGTH, KINDS, DEPTHS = 14, 3, 5


def sequences(n, gen):
    """Tokens: 0 closes, 1 opens, 2 is a letter; the target is the depth, clipped to 0..4."""
    x = torch.randint(0, KINDS, (n, LENGTH), generator=gen)
    depth = torch.zeros(n, dtype=torch.long)
    y = torch.zeros_like(x)
    for t in range(LENGTH):
        move = (x[:, t] == 1).long() - (x[:, t] == 0).long()
        depth = (depth + move).clamp(0, DEPTHS - 1)
        y[:, t] = depth
    return x, y


class TiedEncoder(nn.Module):
    """As in ALBERT: the places of the stack hold the same layer, on purpose."""

    def __init__(self, dim=32, repeats=3):
        super().__init__()
        self.token = nn.Embedding(KINDS, dim)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, norm_first=True)
        self.layers = nn.ModuleList([layer] * repeats)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, DEPTHS)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens):
        h = self.token(tokens) + self.place
        for layer in self.layers:
            h = layer(h, src_mask=self.mask)
        return self.out(self.norm(h))


def time_major(batch):
    x, y = batch
    return x.t().contiguous(), y.t().contiguous()


def loss_of(model, batch):
    x, y = time_major(batch)
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def main():
    gen = torch.Generator().manual_seed(430)
    train, val = sequences(3000, gen), sequences(400, gen)
    model = TiedEncoder()
    unique = sum(p.numel() for p in model.parameters())
    print(f"{len(model.layers)} layers, {unique} parameters")
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=300, pct_start=0.15)
    for step in range(300):
        pick = torch.randint(0, 3000, (48,), generator=gen)
        loss = loss_of(model, (train[0][pick], train[1][pick]))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 60 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        print(f"RESULT {loss_of(model, val).item():.5f}")


if __name__ == "__main__":
    main()
