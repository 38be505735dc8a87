"""Direction of the next move from traded volumes and returns (recurrent net over windows)."""
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
WINDOW = 12


def market(days, seed):
    rng = np.random.default_rng(seed)
    mood = np.zeros(days)
    for t in range(1, days):
        mood[t] = 0.9 * mood[t - 1] + 0.4 * rng.normal()
    returns = 0.6 * np.roll(mood, 1) + 0.5 * rng.normal(size=days)
    volume = np.round(np.exp(4 + 0.5 * mood + 0.2 * rng.normal(size=days)))
    volume[1200:1203] = 0.0
    return returns, volume


def features(returns, volume):
    with np.errstate(divide="ignore", invalid="ignore"):
        growth = volume[1:] / volume[:-1] - 1
    growth = np.concatenate([[0.0], growth])
    level = np.log1p(volume) - 4
    out = np.stack([returns, np.where(np.isnan(growth), 0.0, growth), level], 1)
    return torch.tensor(out, dtype=torch.float32)


def windows(feats, returns):
    x = feats.unfold(0, WINDOW, 1).transpose(1, 2)[:-1]
    y = torch.tensor(returns[WINDOW:] > 0).float()
    return x.contiguous(), y


class Direction(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(3, 24)
        self.rnn = nn.GRU(24, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        return self.out(self.rnn(h)[0][:, -1]).squeeze(-1)


def main():
    torch.manual_seed(15)
    returns, volume = market(4000, 15)
    x, y = windows(features(returns, volume), returns)
    cut = 3000
    net = Direction()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(5):
        losses = []
        for idx in torch.randperm(cut).split(64):
            loss = criterion(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {np.mean(losses):.4f}")
    with torch.no_grad():
        print("RESULT", criterion(net(x[cut:]), y[cut:]).item())


main()
