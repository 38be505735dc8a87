"""Forecasts a chaotic series with a fixed recurrent reservoir and a trained readout."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(233)

UNITS, WASHOUT = 160, 100


def mackey_glass(length, delay=17):
    series = [1.2] * (delay + 1)
    for _ in range(length + 300):
        past, now = series[-1 - delay], series[-1]
        series.append(now + 0.2 * past / (1 + past ** 10) - 0.1 * now)
    return torch.tensor(series[-length:])


class Reservoir(nn.Module):
    """Leaky echo-state units: their weights are drawn once and stay."""

    def __init__(self, units, radius=0.9, leak=0.5):
        super().__init__()
        mix = torch.randn(units, units) * (torch.rand(units, units) < 0.1)
        mix = mix * radius / torch.linalg.eigvals(mix).abs().max()
        self.register_buffer("mix", mix)
        self.register_buffer("enter", 0.8 * (torch.rand(units, 2) * 2 - 1))
        self.leak = leak

    def forward(self, value, state):
        drive = self.enter @ torch.stack([value, torch.ones_like(value)])
        fresh = torch.tanh(drive + self.mix @ state)
        return (1 - self.leak) * state + self.leak * fresh


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.reservoir = Reservoir(UNITS)
        self.readout = nn.Sequential(nn.Linear(UNITS, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, value, state):
        state = self.reservoir(value, state).detach()
        return self.readout(state).squeeze(-1), state


def passes(model, series, horizon=6, chunk=40):
    """Runs through the series and yields forecasts with their targets, chunk by chunk."""
    state = torch.zeros(UNITS)
    preds, targets = [], []
    for t in range(len(series) - horizon):
        pred, state = model(series[t], state)
        if t < WASHOUT:
            continue
        preds.append(pred)
        targets.append(series[t + horizon])
        if len(preds) == chunk:
            yield torch.stack(preds), torch.stack(targets)
            preds, targets = [], []


def main():
    series = mackey_glass(2000)
    series = (series - series.mean()) / series.std()
    train, val = series[:1400], series[1300:]
    model = Forecaster()
    opt = torch.optim.Adam(model.readout.parameters(), lr=4e-3)
    for epoch in range(8):
        for pred, target in passes(model, train):
            loss = (pred - target).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            errors = [(p - t).pow(2).mean() for p, t in passes(model, val)]
        score = torch.stack(errors).mean().item()
        print(f"epoch {epoch} loss {loss.item():.4f} val {score:.4f}")
    return score


print("RESULT", main())
