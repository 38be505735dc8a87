import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(77)

SIZE = 12
EPOCHS = 14


def gratings(n, gen, shift, pitch=1.3):
    """Oriented stripes; the class is the orientation."""
    label = torch.randint(0, 6, (n,), generator=gen)
    angle = (label.float() + shift) * torch.pi / 6 + 0.08 * torch.randn(n, generator=gen)
    phase = torch.rand(n, generator=gen) * 6.28
    ax = torch.arange(SIZE).float()
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    wave = torch.sin(pitch * (xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]) + phase[:, None, None])
    return (wave + 1.2 * torch.randn(n, SIZE, SIZE, generator=gen))[:, None], label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        return self.head(self.backbone(x))


def warm_start(net, gen):
    x, y = gratings(512, gen, shift=0.5, pitch=0.5)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(4):
        for i in range(0, 512, 64):
            opt.zero_grad()
            F.cross_entropy(net(x[i:i + 64]), y[i:i + 64]).backward()
            opt.step()
    net.head.reset_parameters()


def set_phase(net, epoch):
    """The head trains alone at first; later the backbone follows at a lower pace."""
    joint = epoch >= 2
    for p in net.backbone.parameters():
        p.requires_grad_(joint)
        if joint:
            p.register_hook(lambda g: g * 0.5)


def main():
    gen = torch.Generator().manual_seed(1)
    net = Net()
    warm_start(net, gen)
    train_x, train_y = gratings(1500, gen, shift=0.0)
    val_x, val_y = gratings(1000, gen, shift=0.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(EPOCHS):
        set_phase(net, epoch)
        for idx in torch.randperm(len(train_x), generator=gen).split(50):
            loss = F.cross_entropy(net(train_x[idx]), train_y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            logits = net(val_x)
            val = F.cross_entropy(logits, val_y).item()
            acc = (logits.argmax(1) == val_y).float().mean().item()
        print(f"epoch {epoch:2d}  val {val:.4f}  accuracy {acc:.3f}")
    print("RESULT", val)


if __name__ == "__main__":
    main()
