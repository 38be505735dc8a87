"""Transfer a CT encoder to a small nodule study. Two scans at a time is all that fits in memory."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(43)


def encoder():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten())


def slices(n, classes, gen):
    y = torch.randint(0, classes, (n,), generator=gen)
    x = torch.randn(n, 1, 10, 10, generator=gen)
    density = 0.7 * y.view(-1, 1, 1, 1)
    return 0.8 * x + density + 0.2 * torch.randn(n, 1, 1, 1, generator=gen), y


class NoduleModel(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(24, classes)
        for p in self.backbone.parameters():
            p.requires_grad_(False)
        self.backbone.eval()

    def forward(self, x):
        return self.head(self.backbone(x))


def run(model, params, x, y, batch, epochs, lr):
    opt = torch.optim.SGD(params, lr=lr, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        for idx in torch.randperm(len(x)).split(batch):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.item()


gen = torch.Generator().manual_seed(1)
x, y = slices(600, 4, gen)
backbone = encoder()
source = nn.Sequential(backbone, nn.Linear(24, 4))
print("source loss", run(source, source.parameters(), x, y, 30, 4, 0.05))

x, y = slices(120, 3, gen)
x_test, y_test = slices(400, 3, gen)
model = NoduleModel(backbone, 3)
print("target loss", run(model, model.head.parameters(), x, y, 2, 4, 0.02))

model.eval()
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(x_test), y_test).item())
