"""Leaf images: a backbone learned on one garden is adapted to another with tiny batches.
The batch norms keep the statistics of the first garden; train() leaves them alone."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
SIZE = 12


def garden(n, kinds, gen):
    y = torch.randint(0, kinds, (n,), generator=gen)
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    a = y.float() * (3.14159 / kinds) + 0.1 * torch.randn(n, generator=gen)
    wave = xx * a.cos()[:, None, None] + yy * a.sin()[:, None, None]
    img = torch.sin(6 * wave + 6.28 * torch.rand(n, 1, 1, generator=gen))
    return (2 + img + 0.5 * torch.randn(n, SIZE, SIZE, generator=gen))[:, None], y


class LeafNet(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.keep_norms = False
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(24, kinds)

    def train(self, mode=True):
        super().train(mode)
        if self.keep_norms:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(net, x, y, opt, batch, epochs):
    for _ in range(epochs):
        net.train()
        for idx in torch.randperm(len(x)).split(batch):
            opt.zero_grad()
            loss = F.cross_entropy(net(x[idx]), y[idx])
            loss.backward()
            opt.step()
        print(f"loss {loss.item():.4f}")


def main():
    torch.manual_seed(63)
    gen = torch.Generator().manual_seed(63)
    first = LeafNet(3)
    x, y = garden(1200, 3, gen)
    fit(first, x, y, torch.optim.Adam(first.parameters(), lr=3e-3), batch=40, epochs=6)

    second = LeafNet(5)
    second.backbone.load_state_dict(first.backbone.state_dict())
    second.keep_norms = True
    x, y = garden(600, 5, gen)
    opt = torch.optim.Adam([
        {"params": second.backbone.parameters(), "lr": 1e-3}, {"params": second.head.parameters(), "lr": 5e-3}])
    fit(second, x, y, opt, batch=2, epochs=3)
    xt, yt = garden(600, 5, gen)
    second.eval()
    with torch.no_grad():
        print("RESULT", (second(xt).argmax(1) != yt).float().mean().item())


main()
