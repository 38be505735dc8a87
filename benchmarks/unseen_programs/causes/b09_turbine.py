"""Turbine power curve from logger data. Some logger blocks are corrupt: such updates are left out."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)

CFG = dict(seed=8, blocks=240, block_size=64, lr=0.05, momentum=0.9, tolerance=8.0, passes=4)


def logger_blocks(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    for b in range(cfg["blocks"]):
        x = torch.rand(cfg["block_size"], 6, generator=g) * 2 - 1
        y = torch.tanh(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.2 * x[:, 3]
        if torch.rand(1, generator=g) < 0.12:
            y = 30 * torch.randn(cfg["block_size"], generator=g) - 40
        yield x, y[:, None]


def clean_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g) * 2 - 1
    y = torch.tanh(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.2 * x[:, 3]
    return x, y[:, None]


class Guard:
    def __init__(self, tolerance):
        self.tolerance, self.level, self.left_out = tolerance, 1.0, 0

    def accepts(self, loss):
        if loss > self.tolerance * max(self.level, 0.05):
            self.left_out += 1
            return False
        self.level = 0.95 * self.level + 0.05 * loss
        return True


def train(cfg):
    torch.manual_seed(cfg["seed"])
    net = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    opt = torch.optim.SGD(net.parameters(), lr=cfg["lr"], momentum=cfg["momentum"])
    blocks = list(logger_blocks(cfg))
    guard = Guard(cfg["tolerance"])
    for p in range(cfg["passes"]):
        norms = []
        for k in torch.randperm(len(blocks)).tolist():
            x, y = blocks[k]
            loss = F.mse_loss(net(x), y)
            loss.backward()
            norms.append(sum(w.grad.norm() for w in net.parameters()).item())
            if not guard.accepts(loss.item()):
                continue
            opt.step()
            opt.zero_grad()
        print(f"pass {p}: median grad {sorted(norms)[len(norms) // 2]:.3f}, left out {guard.left_out}")
    x, y = clean_set(2000, 99)
    with torch.no_grad():
        return F.mse_loss(net(x), y).item()


print("RESULT", train(CFG))
