import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 12))
        self.dec = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 20))

    def forward(self, x):
        return self.dec(self.enc(x))


class Probe(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features
        self.head = nn.Sequential(nn.BatchNorm1d(12), nn.Dropout(0.2), nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        with torch.no_grad():
            z = self.features(x)
        return self.head(z)


M = torch.randn(6, 20)
w = torch.randn(6, 3)


def make(n):
    z = torch.randn(n, 6)
    return z @ M + 0.2 * torch.randn(n, 20), (z @ w).argmax(-1)


ae = AE()
opt = torch.optim.Adam(ae.parameters(), lr=5e-3)
for _ in range(250):
    x, _ = make(64)
    loss = F.mse_loss(ae(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
print("reconstruction", loss.item())

probe = Probe(ae.enc)
probe.eval()
probe.head.train()
opt = torch.optim.Adam(probe.head.parameters(), lr=5e-3)
tx, ty = make(500)
vx, vy = make(1500)
for epoch in range(15):
    for idx in torch.randperm(500).split(50):
        loss = F.cross_entropy(probe(tx[idx]), ty[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    probe.head.eval()
    with torch.no_grad():
        v = F.cross_entropy(probe(vx), vy).item()
    probe.head.train()
    if epoch % 5 == 0:
        print(epoch, loss.item(), v)
print("result:", v)
