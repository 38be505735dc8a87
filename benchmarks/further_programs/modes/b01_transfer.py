import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )

    def forward(self, x):
        return self.net(x)


def images(n, kinds=6):
    y = torch.arange(n) * kinds // n
    grid = torch.arange(8).float()
    gy, gx = torch.meshgrid(grid, grid, indexing="ij")
    base = torch.stack([torch.sin((0.6 + 0.2 * k) * gx + (k % 3) * gy) * (1 + 0.4 * k) for k in range(kinds)])
    return base[y].unsqueeze(1) + 0.8 * torch.randn(n, 1, 8, 8), y


def run(model, params, x, y, epochs, lr, batch, shuffle, on_epoch=None):
    opt = torch.optim.Adam(params, lr=lr)
    for _ in range(epochs):
        model.train()
        if on_epoch is not None:
            on_epoch()
        order = torch.randperm(len(x)) if shuffle else torch.arange(len(x))
        chunks = list(order.split(batch))
        if not shuffle:
            chunks = [chunks[i] for i in torch.randperm(len(chunks))]
        for idx in chunks:
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.item()


backbone = Backbone()
x, y = images(600)
pre = nn.Sequential(backbone, nn.Linear(64, 6))
print("pretraining", run(pre, pre.parameters(), x, y, 5, 5e-3, 32, True))

for p in backbone.parameters():
    p.requires_grad = False
model = nn.Sequential(backbone, nn.Linear(64, 3))
x, y = images(240)
hook = None
# clips of one recording stay together in a batch
print("fine-tuning", run(model, model[1].parameters(), x, y % 3, 12, 5e-3, 4, False, hook))

model.eval()
vx, vy = images(600)
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(vx), vy % 3).item())
