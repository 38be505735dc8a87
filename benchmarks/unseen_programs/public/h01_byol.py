"""Trains an image encoder by predicting a slowly moving copy of itself, then probes it linearly."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(101)

CLASSES, SIZE = 5, 16


def patterns(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    t = torch.linspace(0, 6.28, SIZE)
    yy, xx = torch.meshgrid(t, t, indexing="ij")
    kx, ky = torch.tensor([1, 2, 0, 1, 3])[y], torch.tensor([0, 1, 2, 2, 1])[y]
    wave = torch.sin(kx[:, None, None] * xx + ky[:, None, None] * yy + 6.28
                     * torch.rand(n, 1, 1, generator=g))
    tint = 0.5 * torch.randn(n, 3, 1, 1, generator=g)
    return wave[:, None] + tint + 0.5 * torch.randn(n, 3, SIZE, SIZE, generator=g), y


def augment(x):
    x = torch.roll(x, torch.randint(0, SIZE, (2,)).tolist(), dims=(2, 3))
    gain, tint = 0.6 + 0.8 * torch.rand(len(x), 1, 1, 1), 0.7 * torch.randn(len(x), 3, 1, 1)
    return x * gain + tint + 0.2 * torch.randn_like(x)


def mlp(a, hidden, b):
    return nn.Sequential(nn.Linear(a, hidden), nn.BatchNorm1d(hidden), nn.ReLU(),
                         nn.Linear(hidden, b))


class BYOL(nn.Module):
    def __init__(self, dim=48, proj=24, tau=0.98):
        super().__init__()
        backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, dim, 3, 2, 1), nn.BatchNorm2d(dim), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.online = nn.Sequential(backbone, mlp(dim, 64, proj))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = mlp(proj, 64, proj)
        self.tau = tau

    def forward(self, a, b):
        loss = 0.0
        for one, two in ((a, b), (b, a)):
            with torch.no_grad():
                goal = F.normalize(self.target(two), dim=-1)
            guess = F.normalize(self.predictor(self.online(one)), dim=-1)
            loss = loss + (2 - 2 * (guess * goal).sum(-1)).mean()
        return loss / 2

    @torch.no_grad()
    def update_target(self):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.lerp_(o, 1 - self.tau)


def probe(encoder, train, val):
    encoder.eval()
    with torch.no_grad():
        a, b = encoder(train[0]), encoder(val[0])
    mean, std = a.mean(0), a.std(0) + 1e-5
    head = nn.Linear(a.shape[1], CLASSES)
    opt = torch.optim.Adam(head.parameters(), lr=0.03)
    for _ in range(120):
        loss = F.cross_entropy(head((a - mean) / std), train[1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return F.cross_entropy(head((b - mean) / std), val[1]).item()


images, _ = patterns(1500, 1)
model = BYOL()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=3e-3, weight_decay=1e-4)
for step in range(1, 161):
    x = images[torch.randint(0, len(images), (64,))]
    loss = model(augment(x), augment(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.update_target()
    if step % 40 == 0:
        with torch.no_grad():
            spread = F.normalize(model.target(images[:256]), dim=-1).std(0).mean().item()
        print(f"step {step} loss {loss.item():.4f} embedding std {spread:.4f}")
print("RESULT", round(probe(model.online[0], patterns(400, 2), patterns(500, 3)), 5))
