"""Classify wide sparse rows through a random sketch. The sketch matrix is not stored: it is drawn again from
its seed at each call. The bfloat16 readout carries the rounding rest of each update along."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
WIDE, SKETCH, KINDS = 2000, 256, 4


def sketch(x, seed=7):
    g = torch.Generator().manual_seed(seed)
    m = torch.randint(0, 2, (WIDE, SKETCH), generator=g).float() * 2 - 1
    return x @ m / SKETCH ** 0.5


def rows(n, words, gen):
    y = torch.randint(0, KINDS, (n,), generator=gen)
    p = 0.004 + 0.07 * words[y]
    return (torch.rand(n, WIDE, generator=gen) < p).float(), y


class CarrySGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                rest = self.state[p].setdefault("rest", torch.zeros_like(p))
                move = rest - group["lr"] * p.grad
                old = p.clone()
                p.add_(move)
                rest.copy_(move - (p - old))


class Readout(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(SKETCH, 48), nn.Linear(48, KINDS)

    def forward(self, x):
        return self.b(torch.tanh(self.a(sketch(x).bfloat16()))).float()


def main():
    torch.manual_seed(68)
    gen = torch.Generator().manual_seed(68)
    words = (torch.rand(KINDS, WIDE, generator=gen) < 0.2).float()
    x, y = rows(2500, words, gen)
    xv, yv = rows(600, words, gen)
    net = Readout().bfloat16()
    opt = CarrySGD(net.parameters(), lr=0.3)
    for epoch in range(12):
        for idx in torch.randperm(len(x), generator=gen).split(50):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            valid = F.cross_entropy(net(xv), yv).item()
        print(f"epoch {epoch} loss {loss.item():.4f} valid {valid:.4f}")
    print("RESULT", valid)


if __name__ == "__main__":
    main()
