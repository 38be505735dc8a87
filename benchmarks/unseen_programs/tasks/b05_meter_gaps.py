"""Estimates household load from the pulse times that a smart meter reports."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(17)

WINDOW = 12
START = 1_718_000_000  # seconds since 1970


class PulseLog:
    """Pulse times of many meters, as the gateway writes them."""

    def __init__(self, meters, seed):
        g = torch.Generator().manual_seed(seed)
        load = 0.3 + 2.7 * torch.rand(meters, generator=g)
        drift = 0.3 * torch.randn(meters, generator=g)
        phase = torch.linspace(0, 1, WINDOW + 1)
        rate = (load[:, None] + drift[:, None] * phase).clamp(min=0.15)
        gap = 20.0 / rate * (1 + 0.08 * torch.randn(rate.shape, generator=g))
        offset = torch.randint(0, 30 * 86400, (meters, 1), generator=g)
        self.times = START + offset + gap.round().long().cumsum(1)
        self.load = rate[:, -1]

    def columns(self):
        return self.times, self.load


def to_gaps(times):
    stamps = times.float()
    gaps = stamps[:, 1:] - stamps[:, :-1]
    return torch.log1p(gaps.clamp(min=0))


class LoadModel(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, gaps):
        _, last = self.rnn(gaps.unsqueeze(-1) - 2.8)
        return self.head(last[-1]).squeeze(-1)


def batches(x, y, size, gen):
    for pick in torch.randperm(len(x), generator=gen).split(size):
        yield x[pick], y[pick]


def mae(model, x, y):
    with torch.inference_mode():
        return (model(x) - y).abs().mean().item()


def main():
    times, load = PulseLog(2000, seed=3).columns()
    val_times, val_load = PulseLog(500, seed=4).columns()
    x, val_x = to_gaps(times), to_gaps(val_times)
    print("mean log gap", round(x.mean().item(), 3), "std", round(x.std().item(), 3))

    model = LoadModel()
    opt = torch.optim.RAdam(model.parameters(), lr=4e-3)
    gen = torch.Generator().manual_seed(9)
    best = float("inf")
    for epoch in range(10):
        running = 0.0
        for xb, yb in batches(x, load, 100, gen):
            loss = nn.functional.smooth_l1_loss(model(xb), yb, beta=0.2)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item() * len(xb)
        score = mae(model, val_x, val_load)
        best = min(best, score)
        print(f"epoch {epoch} train {running / len(x):.4f} mae {score:.4f} best {best:.4f}")
    print("RESULT", mae(model, val_x, val_load))


main()
