"""R-Drop: two stochastic passes per batch with a symmetric KL term."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class GaussianNoise(nn.Module):
    def __init__(self, std):
        super().__init__()
        self.std = std

    def forward(self, x):
        return x + self.std * torch.randn_like(x) if self.training else x


class Net(nn.Module):
    def __init__(self, d_in, h, n, p=0.3):
        super().__init__()
        self.noise = GaussianNoise(0.1)
        self.l1, self.l2, self.l3 = nn.Linear(d_in, h), nn.Linear(h, h), nn.Linear(h, n)
        self.p = p

    def forward(self, x):
        x = F.dropout(F.relu(self.l1(self.noise(x))), self.p, self.training)
        x = F.dropout(F.relu(self.l2(x)), self.p, training=self.training)
        return self.l3(x)


w = torch.randn(20, 3)


def make(n):
    x = torch.randn(n, 20)
    return x, (x @ w + 1.5 * torch.randn(n, 3)).argmax(-1)


def kl(p, q):
    return F.kl_div(p.log_softmax(-1), q.log_softmax(-1), log_target=True, reduction="batchmean")


tx, ty = make(400)
vx, vy = make(1500)
model = Net(20, 96, 3)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(15):
    model.train()
    for idx in torch.randperm(400).split(40):
        a, b = model(tx[idx]), model(tx[idx])
        loss = F.cross_entropy(a, ty[idx]) + F.cross_entropy(b, ty[idx]) + 2.0 * (kl(a, b) + kl(b, a)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        v = F.cross_entropy(model(vx), vy).item()
    if epoch % 5 == 0:
        print(epoch, loss.item(), v)
print("result:", v)
