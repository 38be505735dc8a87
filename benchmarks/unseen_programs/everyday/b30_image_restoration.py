"""Restore blurred and noisy pictures with a residual network."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(3030)

SIZE = 20


def clean_pictures(n):
    """Piecewise smooth pictures: a gradient, two boxes and a disc."""
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE),
                            indexing="ij")
    slope = torch.randn(n, 2, 1, 1) * 0.3
    picture = slope[:, 0] * yy + slope[:, 1] * xx
    for _ in range(2):
        c = torch.rand(n, 2, 1, 1) * 1.6 - 0.8
        half = 0.15 + 0.35 * torch.rand(n, 2, 1, 1)
        box = ((yy - c[:, 0]).abs() < half[:, 0]) & ((xx - c[:, 1]).abs() < half[:, 1])
        picture = torch.where(box, torch.randn(n, 1, 1).expand_as(picture), picture)
    c = torch.rand(n, 2, 1, 1) * 1.6 - 0.8
    disc = (yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 < 0.12
    picture = torch.where(disc, torch.randn(n, 1, 1).expand_as(picture), picture)
    return picture.unsqueeze(1)


def degrade(picture):
    kernel = torch.tensor([1.0, 2.0, 1.0])
    kernel = (kernel[:, None] * kernel[None]).view(1, 1, 3, 3) / 16
    blurred = F.conv2d(F.pad(picture, (1, 1, 1, 1), mode="replicate"), kernel)
    return blurred + 0.1 * torch.randn_like(picture)


class Restorer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(2)])
        self.out = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for conv in self.mid:
            h = h + F.relu(conv(h))
        return x + self.out(h)


@torch.no_grad()
def error(model, degraded, clean):
    model.eval()
    value = F.mse_loss(model(degraded), clean).item()
    model.train()
    return value


def main():
    clean = clean_pictures(1000)
    degraded = degrade(clean)
    val_clean = clean_pictures(200)
    val_degraded = degrade(val_clean)
    print(f"error of the degraded pictures {F.mse_loss(val_degraded, val_clean).item():.5f}")

    inputs = DataLoader(TensorDataset(degraded), batch_size=25, shuffle=True)
    targets = DataLoader(TensorDataset(clean), batch_size=25, shuffle=True)
    model = Restorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(4):
        total = 0.0
        for (x,), (y,) in zip(inputs, targets):
            loss = F.l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        val = error(model, val_degraded, val_clean)
        print(f"epoch {epoch} train l1 {total / len(inputs):.4f} val mse {val:.5f}")
    print(f"RESULT {error(model, val_degraded, val_clean):.5f}")


if __name__ == "__main__":
    main()
