import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


def exact(x):
    return torch.sin(math.pi * x) + 0.4 * torch.sin(3 * math.pi * x)


def source(x):
    """-u'' + u = f"""
    a, b = math.pi ** 2, (3 * math.pi) ** 2
    return (a + 1) * torch.sin(math.pi * x) + 0.4 * (b + 1) * torch.sin(3 * math.pi * x)


class Field(nn.Module):
    def __init__(self, width=24, depth=3):
        super().__init__()
        dims = [1] + [width] * depth
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in zip(dims, dims[1:]))
        self.out = nn.Linear(width, 1)
        for m in [*self.hidden, self.out]:
            nn.init.xavier_normal_(m.weight)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        h = 2 * x - 1
        for layer in self.hidden:
            h = torch.tanh(layer(h))
        return self.out(h)


def derivative(u, x):
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


class Solver:
    def __init__(self, n_colloc=64):
        self.net = Field()
        self.x = torch.linspace(0, 1, n_colloc).unsqueeze(1).requires_grad_(True)
        self.xb = torch.tensor([[0.0], [1.0]])
        self.f = source(self.x.detach())
        self.opt = torch.optim.LBFGS(self.net.parameters(), lr=1.0, max_iter=10, history_size=30,
                                     line_search_fn="strong_wolfe")
        self.calls = 0

    def loss(self):
        u = self.net(self.x)
        uxx = derivative(derivative(u, self.x), self.x)
        pde = ((-uxx + u - self.f) / 10).pow(2).mean()
        bc = self.net(self.xb).pow(2).mean()
        return pde + 20 * bc

    def closure(self):
        value = self.loss()
        value.backward()
        self.calls += 1
        return value

    def solve(self, rounds=60):
        for k in range(rounds):
            self.opt.zero_grad()
            value = self.opt.step(self.closure)
            if k % 10 == 0:
                print(f"round {k:3d} calls {self.calls:4d} loss {value.item():.3e} error {self.error():.3e}")

    @torch.no_grad()
    def error(self):
        t = torch.linspace(0, 1, 301).unsqueeze(1)
        ref = exact(t)
        return ((self.net(t) - ref).norm() / ref.norm()).item()


solver = Solver()
solver.solve()
print("RESULT", solver.error())
