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


loader = DataLoader(TensorDataset(*rings(1000, 0.3)), batch_size=25, shuffle=True)
xv, yv = rings(1000)
net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3, T_mult=2, eta_min=0.0)
iters = len(loader)
snapshots = []
for epoch in range(21):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        scheduler.step(epoch + (i + 1) / iters)
    if epoch + 1 in (3, 9, 21):
        snapshots.append({k: v.clone() for k, v in net.state_dict().items()})
        with torch.no_grad():
            print(f"cycle ends at epoch {epoch}: val {F.cross_entropy(net(xv), yv).item():.4f}")

probs = 0
for s in snapshots:
    net.load_state_dict(s)
    with torch.no_grad():
        probs = probs + net(xv).softmax(-1) / len(snapshots)
print(f"result: {F.nll_loss(probs.log(), yv).item():.4f}")
