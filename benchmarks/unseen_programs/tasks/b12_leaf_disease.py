"""Detects leaf disease in small colour photographs that are stored as bytes."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)

SIDE, CLASSES = 20, 3


def photographs(n, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=g)
    leaf = torch.tensor([70.0, 120.0, 60.0]).view(1, 3, 1, 1)
    light = 0.8 + 0.4 * torch.rand(n, 1, 1, 1, generator=g)
    image = leaf * light + 9.0 * torch.randn(n, 3, SIDE, SIDE, generator=g)
    spots = torch.rand(n, 1, SIDE // 2, SIDE // 2, generator=g) < 0.12
    spots = F.interpolate(spots.float(), scale_factor=2)
    tint = torch.tensor([[0.0, 0.0, 0.0], [38.0, 6.0, -14.0], [14.0, 30.0, 26.0]])
    image = image + spots * tint[label].view(n, 3, 1, 1)
    return image.clamp(0, 255).byte(), label


class Preprocess:
    """Bytes to channel-normalised floats."""

    def __init__(self, images):
        pixels = images.float()
        self.mean = pixels.mean((0, 2, 3), keepdim=True)
        self.std = pixels.std((0, 2, 3), keepdim=True)

    def __call__(self, images):
        return (images.float() - self.mean) / self.std


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1)
        self.norm = nn.GroupNorm(4, cout)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 16, 1), Block(16, 24, 2))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        h = self.blocks(x)
        return self.head(h.amax((2, 3)) + h.mean((2, 3)))


class Experiment:
    def __init__(self):
        self.images, self.labels = photographs(900, 1)
        self.val_images, self.val_labels = photographs(300, 2)
        self.prepare = Preprocess(self.images)
        self.net = LeafNet()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=4e-3, weight_decay=0.01)

    def batches(self, size=60):
        for pick in torch.randperm(len(self.images)).split(size):
            yield self.prepare(self.images[pick]), self.labels[pick]

    def validate(self):
        self.net.eval()
        loss, hits = 0.0, 0
        with torch.no_grad():
            for x, y in zip(self.val_images.split(100), self.val_labels.split(100)):
                logits = self.net(x.float() / 255)
                loss += F.cross_entropy(logits, y, reduction="sum").item()
                hits += (logits.argmax(1) == y).sum().item()
        self.net.train()
        return loss / len(self.val_labels), hits / len(self.val_labels)

    def run(self, epochs=6):
        for epoch in range(epochs):
            for x, y in self.batches():
                loss = F.cross_entropy(self.net(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            val, acc = self.validate()
            print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f} acc {acc:.3f}")
        return val


print("RESULT", Experiment().run())
