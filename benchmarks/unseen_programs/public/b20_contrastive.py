"""Trains an image encoder with a contrastive loss on two augmented views and probes it linearly."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(59)

SIZE, CLASSES = 16, 6


def shapes(n, seed):
    """Class-dependent stripe pattern, hidden under a random tint, gain and offset."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    t = torch.linspace(0, 6.28, SIZE)
    yy, xx = torch.meshgrid(t, t, indexing="ij")
    kx, ky = torch.tensor([1, 2, 0, 1, 3, 2])[y], torch.tensor([0, 1, 2, 2, 1, 3])[y]
    wave = torch.sin(kx[:, None, None] * xx + ky[:, None, None] * yy
                     + 6.28 * torch.rand(n, 1, 1, generator=g))
    tint = torch.randn(n, 3, 1, 1, generator=g)
    return 0.8 * wave[:, None] + 0.6 * tint + 0.3 * torch.randn(n, 3, SIZE, SIZE, generator=g), y


def augment(x):
    x = torch.roll(x, shifts=torch.randint(0, SIZE, (2,)).tolist(), dims=(1, 2))
    tint = 0.8 * torch.randn(3, 1, 1)
    return x * (0.6 + 0.8 * torch.rand(1)) + tint + 0.25 * torch.randn_like(x)


class TwoViews(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"aug1": augment(self.x[i]), "aug2": augment(self.x[i])}


class Encoder(nn.Module):
    def __init__(self, dim=48, out=24):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, dim, 3, stride=2, padding=1), nn.BatchNorm2d(dim), nn.ReLU(),
            nn.Conv2d(dim, dim, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, x):
        return self.projection(self.backbone(x))


class NTXentLoss(nn.Module):
    def __init__(self, tau=0.2):
        super().__init__()
        self.tau = tau

    def forward(self, features1, features2):
        z = F.normalize(torch.cat([features1, features2]), dim=1)
        n = len(features1)
        sim = (z @ z.t() / self.tau).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        return F.cross_entropy(sim, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


class ContrastiveRunner:
    def __init__(self, model, criterion, optimizer):
        self.model, self.criterion, self.optimizer = model, criterion, optimizer
        self.batch_metrics = {}

    def handle_batch(self, batch):
        emb1 = self.model(batch["aug1"])
        emb2 = self.model(batch["aug1"])
        loss = self.criterion(emb1, emb2)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.batch_metrics["loss"] = loss.item()

    def train(self, loader, num_epochs):
        self.model.train()
        for epoch in range(1, num_epochs + 1):
            for batch in loader:
                self.handle_batch(batch)
            print(f"{epoch}/{num_epochs} train loss {self.batch_metrics['loss']:.4f}")


def linear_probe(backbone, train, val, steps=150):
    backbone.eval()
    with torch.no_grad():
        f_train, f_val = backbone(train[0]), backbone(val[0])
        mean, std = f_train.mean(0), f_train.std(0) + 1e-5
    f_train, f_val = (f_train - mean) / std, (f_val - mean) / std
    probe = nn.Linear(f_train.shape[1], CLASSES)
    opt = torch.optim.Adam(probe.parameters(), lr=0.02, weight_decay=1e-4)
    for _ in range(steps):
        loss = F.cross_entropy(probe(f_train), train[1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return F.cross_entropy(probe(f_val), val[1]).item()


unlabelled, _ = shapes(1200, 1)
model = Encoder()
runner = ContrastiveRunner(model, NTXentLoss(), torch.optim.Adam(model.parameters(), lr=2e-3))
runner.train(DataLoader(TwoViews(unlabelled), batch_size=80, shuffle=True, drop_last=True), 8)
print("RESULT", round(linear_probe(model.backbone, shapes(400, 2), shapes(600, 3)), 5))
