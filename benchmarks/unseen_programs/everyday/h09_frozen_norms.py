"""Adapt a pretrained network to a new camera with frozen norms and discriminative rates."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(109)

SIZE = 14


def shapes(n, classes, contrast=1.0):
    label = torch.randint(0, classes, (n,))
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE),
                            indexing="ij")
    c = torch.rand(n, 2, 1, 1) * 0.6 - 0.3
    dx, dy = xx - c[:, 0], yy - c[:, 1]
    radius = torch.sqrt(dx ** 2 + dy ** 2 + 1e-6)
    angle = torch.atan2(dy, dx)
    lobes = label.view(-1, 1, 1).float() + 2
    edge = 0.45 + 0.22 * torch.cos(lobes * angle + 6.3 * torch.rand(n, 1, 1))
    image = torch.sigmoid(12 * (edge - radius))
    return contrast * (image - 0.3).unsqueeze(1) + 0.1 * torch.randn(n, 1, SIZE, SIZE), label


class Backbone(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, stride=2, bias=False),
            nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2, bias=False),
            nn.BatchNorm2d(2 * width), nn.ReLU(), nn.Flatten())
        self.dim = 2 * width * 16


class Classifier(nn.Module):
    def __init__(self, backbone, classes, freeze_norms=False):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(backbone.dim, 64), nn.ReLU(), nn.Dropout(0.2),
                                  nn.Linear(64, classes))
        self.freeze_norms = freeze_norms
        if freeze_norms:
            for m in self.norms():
                m.requires_grad_(False)

    def norms(self):
        return [m for m in self.modules() if isinstance(m, nn.BatchNorm2d)]

    def train(self, mode=True):
        super().train(mode)
        if self.freeze_norms:
            for m in self.norms():
                m.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone.net(x))


def run(model, optimizer, data, steps, batch):
    model.train()
    for _ in range(steps):
        idx = torch.randint(0, len(data[0]), (batch,))
        loss = F.cross_entropy(model(data[0][idx]), data[1][idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    value = F.cross_entropy(model(x), y).item()
    model.train()
    return value


def main():
    source = Classifier(Backbone(), 3)
    optimizer = torch.optim.Adam(source.parameters(), lr=3e-3)
    print(f"source {run(source, optimizer, shapes(2000, 3), 150, 64):.4f}")

    target = shapes(1500, 4, contrast=0.9)
    val = shapes(400, 4, contrast=0.9)
    model = Classifier(source.backbone, 4, freeze_norms=True)
    first = model.backbone.net[0]
    first.requires_grad_(False)
    convs = [m.weight for m in model.backbone.net[1:] if isinstance(m, nn.Conv2d)]
    optimizer = torch.optim.AdamW([
        {"params": convs, "lr": 5e-5, "weight_decay": 0.0},
        {"params": model.head.parameters(), "lr": 4e-3}])
    for part in range(4):
        loss = run(model, optimizer, target, 70, 24)
        print(f"part {part} loss {loss:.4f} val {evaluate(model, *val):.4f}")
    print(f"RESULT {evaluate(model, *val):.5f}")


if __name__ == "__main__":
    main()
