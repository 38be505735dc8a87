import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def drop_path(x, drop_prob: float = 0.0, training: bool = False):
    if drop_prob == 0.0 or not training:
        return x
    keep = 1 - drop_prob
    mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
    return x * mask / keep


class DropPath(nn.Module):
    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        return drop_path(x, self.drop_prob)


class Block(nn.Module):
    def __init__(self, d, rate):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.drop_path = DropPath(rate)

    def forward(self, x):
        return x + self.drop_path(self.mlp(self.norm(x)))


class Net(nn.Module):
    def __init__(self, d=32, depth=4, rate=0.6):
        super().__init__()
        self.inp = nn.Linear(20, d)
        self.blocks = nn.Sequential(*[Block(d, r.item()) for r in torch.linspace(0.2, rate, depth)])
        self.head = nn.Linear(d, 2)

    def forward(self, x):
        return self.head(self.blocks(self.inp(x)))


w = torch.randn(20, 2)


def data(n):
    x = torch.randn(n, 20)
    return x, (x @ w + 2.0 * torch.randn(n, 2)).argmax(-1)


tx, ty = data(200)
vx, vy = data(1500)
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
for epoch in range(25):
    model.train()
    for idx in torch.randperm(200).split(25):
        loss = F.cross_entropy(model(tx[idx]), ty[idx], label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        v = F.cross_entropy(model(vx), vy).item()
    if epoch % 5 == 0:
        print(epoch, loss.item(), v)
print("result:", v)
