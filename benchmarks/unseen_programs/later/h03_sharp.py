import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)


class TwoPass:
    def __init__(self, params, base, rho):
        self.params, self.base, self.rho = list(params), base, rho

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm() + 1e-12
        self.moves = [p.grad * (self.rho / norm) for p in self.params]
        for p, m in zip(self.params, self.moves):
            p.add_(m)
        self.base.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, m in zip(self.params, self.moves):
            p.sub_(m)
        self.base.step()
        self.base.zero_grad()


mu = torch.randn(5, 20)


def draw(n):
    y = torch.randint(0, 5, (n,))
    return mu[y] + 1.2 * torch.randn(n, 20), y


x, y = draw(2000)
xv, yv = draw(800)
net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
opt = TwoPass(net.parameters(), torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), rho=0.05)
for epoch in range(10):
    for idx in torch.randperm(2000).split(50):
        F.cross_entropy(net(x[idx]), y[idx]).backward()
        opt.climb()
        loss = F.cross_entropy(net(x[idx]), y[idx])
        loss.backward()
        opt.descend()
    print(epoch, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(xv), yv).item())
