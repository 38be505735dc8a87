import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(61)
torch.set_num_threads(1)


def rings(n, flip=0.0):
    y = torch.randint(0, 4, (n,))
    r = 0.5 + 0.5 * y + 0.12 * torch.randn(n)
    th = torch.rand(n) * 6.2832
    x = torch.stack([r * th.cos(), r * th.sin()], 1)
    return x, torch.where(torch.rand(n) < flip, torch.randint(0, 4, (n,)), y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


epochs = 24
loader = DataLoader(TensorDataset(*rings(1000, 0.3)), batch_size=25, shuffle=True)
xv, yv = rings(1000)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=epochs, eta_min=1e-4)
iters = len(loader)

for epoch in range(epochs):
    net.train()
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step(i / iters)
    if epoch % 6 == 5:
        net.eval()
        with torch.no_grad():
            out = net(xv)
        print(f"epoch {epoch} val loss {F.cross_entropy(out, yv).item():.4f} acc {(out.argmax(1) == yv).float().mean().item():.3f}")

net.eval()
with torch.no_grad():
    print(f"result: {F.cross_entropy(net(xv), yv).item():.4f}")
