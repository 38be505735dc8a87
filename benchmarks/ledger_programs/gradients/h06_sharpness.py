import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
torch.set_num_threads(1)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for g in self.param_groups:
            for p in g["params"]:
                e = p.grad * (g["rho"] / (norm + 1e-12))
                p.add_(e)
                self.state[p]["e"] = e
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for g in self.param_groups:
            for p in g["params"]:
                p.sub_(self.state[p]["e"])
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


def data(n):
    x = torch.randn(n, 20)
    y = ((x[:, :5].sum(1) * x[:, 5]) > 0).long()
    flip = torch.rand(n) < 0.05
    return x, torch.where(flip, 1 - y, y)


model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
opt = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9)
x, y = data(1500)
xv, yv = data(800)
for epoch in range(14):
    for idx in torch.randperm(len(x)).split(100):
        F.cross_entropy(model(x[idx]), y[idx]).backward()
        opt.first_step(zero_grad=True)
        loss = F.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        opt.second_step(zero_grad=True)
    if epoch % 4 == 0:
        print(epoch, round(loss.item(), 4))

with torch.no_grad():
    print(f"result: {F.cross_entropy(model(xv), yv).item():.4f}")
