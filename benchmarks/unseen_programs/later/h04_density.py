import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(4)


def curve(n):
    x = torch.rand(n, 1) * 4 - 2
    s = 0.002 + 0.01 * x.abs()
    return x, torch.sin(2 * x) * 0.2 + s * torch.randn(n, 1), s


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.mu = nn.Linear(64, 1)
        self.log_sigma = nn.Linear(64, 1)
        nn.init.zeros_(self.log_sigma.weight)
        nn.init.constant_(self.log_sigma.bias, -1.0)

    def forward(self, x):
        h = self.trunk(x)
        return self.mu(h), self.log_sigma(h).clamp(-7, 2)


def nll(out, y):
    mu, ls = out
    return (ls + 0.5 * ((y - mu) * torch.exp(-ls)) ** 2).mean()


x, y, _ = curve(4000)
xv, _, sv = curve(1000)
model = Gaussian()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000)
for step in range(2000):
    i = torch.randint(0, 4000, (128,))
    loss = nll(model(x[i]), y[i])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    sched.step()
    if step % 400 == 0:
        print(step, f"{loss.item():.4f}")
with torch.no_grad():
    mu, ls = model(xv)
    print("RESULT", (mu - 0.2 * torch.sin(2 * xv)).abs().mean().item())
