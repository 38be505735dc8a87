import torch
from torch import nn
import torch.nn.functional as F


class SmallCNN(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16, momentum=0.3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.fc = nn.Linear(64, n)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


def dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    x = torch.randn(n, 1, 10, 10, generator=g) * 0.7
    x[y == 0, :, :, :5] += 1
    x[y == 1, :, :5, :] += 1
    x[y == 2, :, 3:7, 3:7] += 2
    return x * 3 + 5, y


@torch.no_grad()
def layer_report(model, shape=(4, 1, 10, 10)):
    """Output shapes and sparsity of every activation, printed once per epoch."""
    stats, hooks = [], []
    for m in model.modules():
        if isinstance(m, nn.ReLU):
            hooks.append(m.register_forward_hook(
                lambda m, i, o: stats.append((tuple(o.shape), round((o == 0).float().mean().item(), 2)))))
    for _ in range(3):
        model(torch.zeros(shape))
    for h in hooks:
        h.remove()
    return stats[-2:]


def accuracy_loss(model, x, y):
    model.eval()
    with torch.no_grad():
        return F.cross_entropy(model(x), y).item()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (x, y), (vx, vy) = dataset(320, 1), dataset(400, 2)
    model = SmallCNN()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(8):
        model.train()
        for idx in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        report = layer_report(model)
        val = accuracy_loss(model, vx, vy)
        print(epoch, f"{loss.item():.3f} {val:.3f}", report)
    print("result:", val)


main()
