import torch
from torch import nn

torch.manual_seed(16)
torch.set_num_threads(1)


class CompensatedAdam(torch.optim.Optimizer):
    """Adam on bfloat16 weights. What rounding drops from a weight is kept beside it and offered again."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s["n"] = 0
                    s["m"] = torch.zeros_like(p, dtype=torch.float32)
                    s["v"] = torch.zeros_like(p, dtype=torch.float32)
                    s["rest"] = torch.zeros_like(p)
                s["n"] += 1
                g = p.grad.float()
                s["m"].lerp_(g, 1 - b1)
                s["v"].lerp_(g * g, 1 - b2)
                m = s["m"] / (1 - b1 ** s["n"])
                v = s["v"] / (1 - b2 ** s["n"])
                exact = p.float() + s["rest"].float() - group["lr"] * m / (v.sqrt() + group["eps"])
                p.copy_(exact)
                s["rest"].copy_(exact - p.float())


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = nn.Linear(dim, dim)
        self.b = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.sigmoid(self.a(x)) * torch.tanh(self.b(x))


def wave(n, gen):
    x = torch.rand(n, 3, generator=gen) * 2 - 1
    y = torch.sin(4 * x[:, 0]) * x[:, 1] + torch.cos(3 * x[:, 2]) * 0.5
    return x, y[:, None]


def main():
    gen = torch.Generator().manual_seed(31)
    train, val = wave(4000, gen), wave(1000, gen)
    model = nn.Sequential(nn.Linear(3, 48), Gate(48), Gate(48), nn.Linear(48, 1)).bfloat16()
    opt = CompensatedAdam(model.parameters(), lr=2e-3)
    steps = 900
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        idx = torch.randint(0, 4000, (64,), generator=gen)
        pred = model(train[0][idx].bfloat16()).float()
        loss = nn.functional.mse_loss(pred, train[1][idx])
        model.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 5))
    with torch.no_grad():
        error = nn.functional.mse_loss(model(val[0].bfloat16()).float(), val[1])
    print("RESULT", error.item())


if __name__ == "__main__":
    main()
