import torch
import torch.nn as nn

torch.manual_seed(21)
torch.set_num_threads(1)
N_STATIONS = 6
HORIZON = 4


def series(station, n=400):
    t = torch.arange(n, dtype=torch.float32)
    s = torch.sin(t / (4 + station)) + 0.4 * torch.cos(t / (2.5 + 0.5 * station))
    return s + 0.05 * torch.randn(n)


bank = [series(s) for s in range(N_STATIONS)]


def windows(station, n, lo, hi):
    s = bank[station]
    i = torch.randint(lo, hi - 24 - HORIZON, (n,))
    x = torch.stack([s[k:k + 24] for k in i])
    y = torch.stack([s[k + 24:k + 24 + HORIZON] for k in i])
    return torch.cat([x, torch.full((n, 1), station / N_STATIONS)], 1), y


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(25, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, HORIZON))

    def forward(self, x):
        return self.net(x)


def train_step(model, opt, loss_fn):
    opt.zero_grad()
    total = 0.0
    for station in range(N_STATIONS):
        x, y = windows(station, 16, 0, 320)
        total = total + loss_fn(model(x), y) / N_STATIONS
        total.backward(retain_graph=True)
    opt.step()
    return total.item()


def main():
    model = Forecaster()
    opt = torch.optim.SGD(model.parameters(), lr=0.12, momentum=0.9)
    loss_fn = nn.MSELoss()
    for step in range(250):
        tl = train_step(model, opt, loss_fn)
        if step % 50 == 0:
            print(f"step {step} loss {tl:.4f}")
    model.eval()
    with torch.no_grad():
        errs = []
        for s in range(N_STATIONS):
            x, y = windows(s, 64, 320, 400)
            errs.append(loss_fn(model(x), y))
    print(f"result: {torch.stack(errs).mean().item():.5f}")


main()
