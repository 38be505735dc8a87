"""Fits heteroscedastic regressors by likelihood and predicts with dropout left on."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(149)


def sensor(n):
    """A response whose noise grows with the load; densities can exceed one."""
    x = 4 * torch.rand(n, 3) - 2
    clean = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:]
    scale = 0.02 + 0.12 * torch.sigmoid(2 * x[:, 1:2])
    return x, 0.3 * (clean + scale * torch.randn(n, 1))


class Regressor(nn.Module):
    def __init__(self, width=96, p=0.02):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Dropout(p),
                                   nn.Linear(width, width),
                                   nn.SiLU(), nn.Dropout(p), nn.Linear(width, width), nn.SiLU())
        self.mean, self.log_var = nn.Linear(width, 1), nn.Linear(width, 1)
        nn.init.constant_(self.log_var.bias, -3.0)

    def forward(self, x):
        h = self.trunk(x)
        return self.mean(h), self.log_var(h).clamp(-9, 3)


def nll(mean, log_var, y):
    return 0.5 * (log_var + (y - mean) ** 2 * torch.exp(-log_var) + math.log(2 * math.pi))


def beta_nll(mean, log_var, y, beta=0.5):
    """Likelihood weighted by the stopped variance, so that noisy regions are not given up."""
    return (nll(mean, log_var, y) * torch.exp(beta * log_var).detach()).mean()


@torch.no_grad()
def predict(members, x, passes=8):
    """Mixture over members and dropout samples; the networks stay in training mode."""
    means, variances = [], []
    for net in members:
        net.train()
        for _ in range(passes):
            m, lv = net(x)
            means.append(m)
            variances.append(lv.exp())
    means, variances = torch.stack(means), torch.stack(variances)
    return means.mean(0), variances.mean(0) + means.var(0)


x, y = sensor(2500)
x_val, y_val = sensor(500)
members = []
for k in range(3):
    torch.manual_seed(1000 + k)
    net = Regressor()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.02, 250)
    pick = torch.randint(0, len(x), (len(x),))
    for step in range(1, 251):
        idx = pick[torch.randint(0, len(pick), (128,))]
        loss = beta_nll(*net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 125 == 0:
            print(f"member {k} step {step} loss {loss.item():.5f}")
    members.append(net)
    mean, var = predict(members, x_val)
    rmse = (mean - y_val).pow(2).mean().sqrt().item()
    print(f"{k + 1} members: rmse {rmse:.4f} nll {nll(mean, var.log(), y_val).mean().item():.4f}")
print("RESULT", round(rmse, 5))
