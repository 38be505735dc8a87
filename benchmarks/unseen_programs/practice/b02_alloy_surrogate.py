"""Fit a surrogate network for the hardness of alloys from composition and heat treatment."""
import torch
torch.set_num_threads(1)
torch.manual_seed(3)
import math
from torch import nn


class GatedLinear(torch.autograd.Function):
    """Linear layer followed by SiLU, keeping only the pre-activation for the backward pass."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        pre = torch.addmm(bias, x, weight.t())
        ctx.save_for_backward(x, weight, pre)
        return pre * torch.sigmoid(pre)

    @staticmethod
    def backward(ctx, grad_out):
        x, weight, pre = ctx.saved_tensors
        s = torch.sigmoid(pre)
        grad_pre = grad_out * (s * (1 + pre * (1 - s)))
        return grad_pre @ weight, grad_pre.t() @ x, grad_pre.sum(0)


class SiLULinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * math.sqrt(2 / n_in))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return GatedLinear.apply(x, self.weight, self.bias)


class Surrogate(nn.Module):
    def __init__(self, n_in, width=96, depth=3):
        super().__init__()
        sizes = [n_in] + [width] * depth
        self.body = nn.ModuleList(SiLULinear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.body:
            x = layer(x)
        return self.out(x).squeeze(1)


def make_alloys(n):
    comp = torch.distributions.Dirichlet(torch.ones(6)).sample((n,))
    temp = torch.rand(n, 1) * 2 - 1
    hours = torch.rand(n, 1)
    strain = comp.var(1, keepdim=True) * 20
    aged = torch.exp(-((temp - 0.3 * comp[:, :1]) ** 2) * 3) * torch.sqrt(hours)
    hv = 1.5 * aged + strain - comp[:, 1:2] * comp[:, 2:3] * 6 + 0.05 * torch.randn(n, 1)
    x = torch.cat([comp * 4 - 0.67, temp, hours * 2 - 1], 1)
    return x, (hv - hv.mean()).squeeze(1)


def fit(config):
    x, y = make_alloys(config["n"])
    n_val = config["n"] // 5
    x_val, y_val, x_tr, y_tr = x[:n_val], y[:n_val], x[n_val:], y[n_val:]
    model = Surrogate(x.shape[1])
    opt = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, config["steps"])
    for step in range(config["steps"]):
        rows = torch.randint(len(x_tr), (config["batch"],))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(x_tr[rows])
        loss = nn.functional.mse_loss(pred.float(), y_tr[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 100 == 0:
            print(f"step {step} mse {loss.item():.4f}")
    with torch.no_grad():
        return nn.functional.mse_loss(model(x_val), y_val).item()


result = fit({"n": 5000, "lr": 3e-3, "steps": 400, "batch": 256})
print("RESULT", result)
