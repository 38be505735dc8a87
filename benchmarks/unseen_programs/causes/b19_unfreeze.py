"""Transfer to a new plant: first the head alone, then everything. bfloat16 weights with float32 copies for the optimizer."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Copies:
    """float32 copies of low-precision parameters, which the optimizer works on."""

    def __init__(self, params, lr):
        self.lr = lr
        self.low, self.full = [], []
        self._register(params)
        self.opt = torch.optim.AdamW(self.full, lr=lr, weight_decay=0.0)
        self.links = list(zip(self.low, self.full))

    def _register(self, params):
        params = list(params)
        fresh = [p.detach().float().clone().requires_grad_(True) for p in params]
        self.low += params
        self.full += fresh
        return fresh

    def add(self, params, lr):
        self.opt.add_param_group({"params": self._register(params), "lr": lr})

    def step(self):
        for p, m in zip(self.low, self.full):
            m.grad = None if p.grad is None else p.grad.float()
            p.grad = None
        self.opt.step()
        with torch.no_grad():
            for p, m in self.links:
                p.copy_(m)


def plant(n, mix, gen):
    x = torch.randn(n, 16, generator=gen)
    z = torch.tanh(x @ mix)
    y = z[:, :4].prod(1) * 3 + z[:, 4] * z[:, 5] + 0.5 * z[:, 6]
    return x, y


def net():
    body = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
    head = nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1))
    return body.bfloat16(), head.bfloat16()


def forward(body, head, x):
    return head(body(x.bfloat16())).float().squeeze(-1)


def main():
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(90)
    mix_a = torch.randn(16, 8, generator=gen) / 3
    x, y = plant(6000, mix_a, gen)
    xv, yv = plant(1500, mix_a, gen)
    body, head = net()
    body.requires_grad_(False)
    copies = Copies(head.parameters(), lr=3e-3)
    for step in range(900):
        if step == 150:
            body.requires_grad_(True)
            copies.add(body.parameters(), lr=3e-3)
            print("body joins")
        idx = torch.randint(0, len(x), (128,), generator=gen)
        loss = F.mse_loss(forward(body, head, x[idx]), y[idx])
        loss.backward()
        copies.step()
        if step % 150 == 0:
            print(f"{step:4d} {loss.item():.4f}")
    with torch.no_grad():
        print("RESULT", F.mse_loss(forward(body, head, xv), yv).item())


main()
