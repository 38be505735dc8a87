"""Multi-label tagging of sky images with a small timm ConvNeXt and the asymmetric loss."""
import torch

torch.set_num_threads(1)
torch.manual_seed(25)

import timm
from timm.loss import AsymmetricLossMultiLabel
from timm.optim import create_optimizer_v2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE = 32
TAGS = ["cloud", "sun", "trail", "rain", "bird", "haze"]


def sky(n, seed):
    """Each tag is present on its own with a low rate and adds its own pattern."""
    g = torch.Generator().manual_seed(seed)
    rate = torch.tensor([0.4, 0.25, 0.2, 0.25, 0.15, 0.3])
    y = (torch.rand(n, len(TAGS), generator=g) < rate).float()
    axis = torch.arange(SIZE).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    c = 4 + 24 * torch.rand(6, n, 1, 1, generator=g)
    cloud = torch.exp(-((xx - c[0]) ** 2 / 80 + (yy - c[1]) ** 2 / 20))
    sun = 1.5 * (((xx - c[2]) ** 2 + (yy - c[3]) ** 2) < 16).float()
    trail = torch.exp(-((xx - yy + c[4] - 16) ** 2) / 2)
    rain = 0.6 * torch.sin(xx * 2 + c[5]) * torch.ones_like(c[0])
    bird = 1.5 * (((xx - c[4]).abs() < 4) & ((yy - c[5]).abs() < 1.5)).float()
    haze = 0.7 * (yy / SIZE) * torch.ones_like(c[0])
    parts = torch.stack([cloud, sun, trail, rain, -bird, haze], dim=1)
    img = (parts * y[:, :, None, None]).sum(1, keepdim=True)
    img = img.repeat(1, 3, 1, 1)
    return img + 0.3 * torch.randn(n, 3, SIZE, SIZE, generator=g), y


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("test_convnext", num_classes=len(TAGS))

    def forward(self, x):
        return torch.sigmoid(self.backbone(x))


@torch.no_grad()
def tag_error(model, loader):
    """Mean over tags of one minus the average precision."""
    model.eval()
    scores = torch.cat([model(x) for x, _ in loader])
    truth = torch.cat([y for _, y in loader])
    errors = []
    for k in range(len(TAGS)):
        hit = truth[scores[:, k].argsort(descending=True), k]
        precision = hit.cumsum(0) / torch.arange(1, len(hit) + 1)
        errors.append(1 - (precision * hit).sum() / hit.sum())
    return torch.stack(errors).mean().item()


def main():
    model = Tagger()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.02)
    criterion = AsymmetricLossMultiLabel(gamma_neg=2, gamma_pos=0, clip=0.05)
    train = DataLoader(TensorDataset(*sky(1280, 1)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*sky(500, 2)), batch_size=250)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=5 * len(train)
    )
    for epoch in range(5):
        model.train()
        total = 0.0
        for x, y in train:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(train):.4f} error {tag_error(model, valid):.4f}")
    print(f"RESULT {tag_error(model, valid):.4f}")


if __name__ == "__main__":
    main()
