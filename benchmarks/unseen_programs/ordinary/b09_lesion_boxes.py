"""Lesion detector head: per-cell lesion score plus box size where a lesion is present."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)

GRID, CH = 6, 4


def scans(n):
    centre = torch.rand(n, GRID, GRID) < 0.01
    size = 0.5 + torch.rand(n, GRID, GRID)
    x = 0.5 * torch.randn(n, CH, GRID, GRID)
    x[:, 0] += 2.0 * centre
    x[:, 1] += 1.5 * centre * size
    x[:, 2] -= 1.5 * centre * size
    return x, centre, size


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(CH, 24, 3, padding=1), nn.ReLU(),
                                   nn.Conv2d(24, 24, 3, padding=1), nn.ReLU())
        self.score = nn.Conv2d(24, 1, 1)
        self.box = nn.Conv2d(24, 1, 1)

    def forward(self, x):
        f = self.trunk(x)
        return self.score(f)[:, 0], self.box(f)[:, 0]


def detection_loss(score, box, centre, size):
    score, box = score.float(), box.float()
    cls = F.binary_cross_entropy_with_logits(score, centre.float(), pos_weight=torch.tensor(20.0))
    present = centre.float()
    reg = ((box - size).abs() * present).sum() / present.sum()
    return cls + reg


model = Head()
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
x, centre, size = scans(1000)

for epoch in range(2):
    for idx in torch.randperm(len(x)).split(4):
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            score, box = model(x[idx])
        loss = detection_loss(score, box, centre[idx], size[idx])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    with torch.no_grad():
        s, b = model(x[:200])
        print(f"epoch {epoch} loss {detection_loss(s, b, centre[:200], size[:200]).item():.4f}")

xv, cv, sv = scans(400)
with torch.no_grad():
    print("RESULT", detection_loss(*model(xv), cv, sv).item())
