import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
rng = np.random.default_rng(0)


def bar(kind, n=24):
    """A noisy bar of points that leans to one of four sides."""
    angle = kind * math.pi / 4
    along = rng.uniform(-1, 1, n)
    across = rng.normal(0, 0.12, n)
    x = along * math.cos(angle) - across * math.sin(angle)
    y = along * math.sin(angle) + across * math.cos(angle)
    return np.stack([x, y, rng.normal(0, 0.2, n)], 1).astype(np.float32)


class Clouds(Dataset):
    spin = 0.0

    def __init__(self, n):
        self.kinds = rng.integers(0, 4, n)
        self.points = [bar(k) for k in self.kinds]

    def __len__(self):
        return len(self.points)

    def pose(self, cloud):
        turn = self.spin * rng.normal()
        c, s = math.cos(turn), math.sin(turn)
        plane = cloud[:, :2]
        plane[:] = plane @ np.array([[c, s], [-s, c]], np.float32)
        return cloud

    def __getitem__(self, i):
        cloud = self.pose(self.points[i])
        return torch.tensor(cloud), int(self.kinds[i])


class TrainingClouds(Clouds):
    spin = 0.25


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, cloud):
        return self.all(self.each(cloud).amax(1))


train, test = TrainingClouds(160), Clouds(120)
net = PointNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()
loader = DataLoader(train, batch_size=32, shuffle=True)
for epoch in range(25):
    for clouds, kinds in loader:
        loss = criterion(net(clouds), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

net.eval()
wrong = 0
with torch.no_grad():
    for clouds, kinds in DataLoader(test, batch_size=60):
        wrong += (net(clouds).argmax(1) != kinds).sum().item()
print("RESULT", wrong / len(test))
