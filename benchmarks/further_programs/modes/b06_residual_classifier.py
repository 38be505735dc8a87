import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)
        self.p = p

    def forward(self, x):
        h = F.dropout(F.relu(self.fc1(x)), self.p, self.training)
        return F.relu(x + F.dropout(self.fc2(h), self.p, self.training))


class Net(nn.Module):
    def __init__(self, dim=48, depth=4, p=0.5):
        super().__init__()
        self.inp = nn.Linear(12, dim)
        self.blocks = nn.ModuleList(Block(dim, p) for _ in range(depth))
        self.out = nn.Linear(dim, 6)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for block in self.blocks:
            if self.training:
                h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=False)
            else:
                h = block(h)
        return self.out(h)


W1, W2 = torch.randn(12, 10) / 2, torch.randn(10, 6)


def data(n):
    x = torch.randn(n, 12)
    return x, (torch.relu(x @ W1) @ W2).argmax(1)


x, y = data(2000)
vx, vy = data(2000)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(10):
    net.train()
    for idx in torch.randperm(len(x)).split(50):
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(x[idx]), y[idx])
        loss.backward()
        opt.step()
    if epoch % 3 == 0:
        print(epoch, loss.item())

net.eval()
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(vx), vy).item())
