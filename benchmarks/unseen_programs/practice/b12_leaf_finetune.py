"""Fine-tune a pretrained texture network on a small set of leaf diseases."""
import torch
torch.set_num_threads(1)
torch.manual_seed(85)
import math
from torch import nn
import torch.nn.functional as F

SIZE, SOURCE, TARGET = 16, 10, 5
FREQS = torch.rand(SOURCE, 2) * 5 + 0.5


def textures(kind, noise=0.6):
    n = len(kind)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    f = FREQS[kind] + 0.1 * torch.randn(n, 2)
    arg = (f[:, 0, None, None] * xx + f[:, 1, None, None] * yy) * 2 * math.pi / SIZE
    img = torch.sin(arg + 6.28 * torch.rand(n, 1, 1))
    return (img + noise * torch.randn(n, SIZE, SIZE))[:, None]


class LeafNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Linear(128, 48), nn.ReLU())
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def pretrain(model, steps=160):
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        kind = torch.randint(SOURCE, (48,))
        loss = F.cross_entropy(model(textures(kind)), kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"pretrained, loss {loss.item():.4f}")


def warm_cosine(step, total, peak, warm=10):
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def finetune(model, x, y, total=140, peak=5e-2):
    opt = torch.optim.Adam([
        {"params": model.backbone.parameters(), "lr": peak * 0.004},
        {"params": model.head.parameters(), "lr": peak},
    ])
    for step in range(total):
        lr = warm_cosine(step, total, peak)
        for group in opt.param_groups:
            group["lr"] = lr
        rows = torch.randint(len(x), (16,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step} lr {lr:.4f} loss {loss.item():.4f}")


model = LeafNet(SOURCE)
pretrain(model)
model.head = nn.Linear(48, TARGET)
pairs = torch.tensor([[0, 5], [1, 6], [2, 7], [3, 8], [4, 9]])


def leaves(n):
    y = torch.randint(TARGET, (n,))
    which = torch.randint(2, (n,))
    return textures(pairs[y, which]), y


x_small, y_small = leaves(60)
x_val, y_val = leaves(1000)
finetune(model, x_small, y_small)
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(x_val), y_val).item())
