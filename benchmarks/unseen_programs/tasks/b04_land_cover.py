"""Trains a pixel classifier of land cover from tiles that are labelled densely or by clicks."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

CONFIG = dict(bands=5, classes=4, side=24, tiles=96, accumulate=4, epochs=7, lr=4e-3)
IGNORE = 255


def scene(n, gen, cfg):
    coarse = torch.randn(n, cfg["classes"], 6, 6, generator=gen)
    smooth = F.interpolate(coarse, size=cfg["side"], mode="bilinear", align_corners=False)
    cover = smooth.argmax(1)
    signature = torch.linspace(-1.5, 1.5, cfg["classes"])[:, None] * torch.tensor(
        [1.0, -0.5, 0.8, 0.2, -1.0])[: cfg["bands"]]
    bands = signature[cover].permute(0, 3, 1, 2)
    bands = bands + 0.9 * torch.randn(bands.shape, generator=gen)
    return bands, cover


def annotate(cover, gen, cfg):
    """Every fourth tile is mapped by an expert, the rest carry a few clicks of volunteers."""
    label = torch.full_like(cover, IGNORE)
    for i in range(len(cover)):
        if i % 4 == 0:
            label[i] = cover[i]
            continue
        spots = torch.randperm(cfg["side"] ** 2, generator=gen)[:4]
        flat = cover[i].flatten()[spots]
        slip = torch.rand(4, generator=gen) < 0.7
        guess = torch.where(slip, (flat + 1) % cfg["classes"], flat)
        label[i].view(-1)[spots] = guess
    return label


class PixelNet(nn.Module):
    def __init__(self, cfg, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(cfg["bands"], width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, cfg["classes"], 1),
        )

    def forward(self, x):
        return self.net(x)


def micro_batches(bands, label, order):
    for i in order:
        yield bands[i:i + 1], label[i:i + 1]


def train_epoch(net, opt, bands, label, gen, cfg):
    order = torch.randperm(len(bands), generator=gen).tolist()
    opt.zero_grad()
    for k, (x, y) in enumerate(micro_batches(bands, label, order), start=1):
        loss = F.cross_entropy(net(x), y, ignore_index=IGNORE)
        (loss / cfg["accumulate"]).backward()
        if k % cfg["accumulate"] == 0:
            opt.step()
            opt.zero_grad()


@torch.no_grad()
def pixel_loss(net, bands, cover):
    net.eval()
    value = F.cross_entropy(net(bands), cover).item()
    net.train()
    return value


gen = torch.Generator().manual_seed(44)
bands, cover = scene(CONFIG["tiles"], gen, CONFIG)
label = annotate(cover, gen, CONFIG)
val_bands, val_cover = scene(32, gen, CONFIG)

net = PixelNet(CONFIG)
opt = torch.optim.Adam(net.parameters(), lr=CONFIG["lr"])
for epoch in range(CONFIG["epochs"]):
    train_epoch(net, opt, bands, label, gen, CONFIG)
    print(f"epoch {epoch} pixel loss {pixel_loss(net, val_bands, val_cover):.4f}")
print("RESULT", pixel_loss(net, val_bands, val_cover))
