"""Classify small fruit photos with a torchvision SqueezeNet and v2 transforms."""
import torch

torch.set_num_threads(1)
torch.manual_seed(44)

from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import squeezenet1_1
from torchvision.transforms import v2

SIZE, CLASSES = 48, 4
COLOURS = torch.tensor([[200, 40, 40], [210, 190, 40], [60, 170, 60], [210, 120, 30]]).float()


class FruitPhotos(Dataset):
    """Round fruits as uint8 images; colour and elongation depend on the kind."""

    def __init__(self, n, seed, transform):
        g = torch.Generator().manual_seed(seed)
        self.transform = transform
        self.y = torch.randint(0, CLASSES, (n,), generator=g)
        axis = torch.arange(SIZE).float()
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        c = 16 + 16 * torch.rand(2, n, 1, 1, generator=g)
        stretch = (1 + 0.5 * (self.y == 1).float())[:, None, None]
        dist = (((xx - c[0]) / stretch) ** 2 + ((yy - c[1]) * stretch) ** 2).sqrt()
        mask = (dist < 14).float()[:, None]
        tint = COLOURS[self.y] + 25 * torch.randn(n, 3, generator=g)
        table = 110 + 30 * torch.randn(n, 3, generator=g)
        img = mask * tint[:, :, None, None] + (1 - mask) * table[:, :, None, None]
        img = img + 18 * torch.randn(n, 3, SIZE, SIZE, generator=g)
        self.images = img.clamp(0, 255).to(torch.uint8)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.images[i]), self.y[i]


def make_transforms():
    finish = [
        v2.ToDtype(torch.float32),
        v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
    train = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(SIZE, padding=4)] + finish)
    return train, v2.Compose(finish)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, right, count = 0.0, 0, 0
    for x, y in loader:
        out = model(x)
        total += nn.functional.cross_entropy(out, y, reduction="sum").item()
        right += (out.argmax(1) == y).sum().item()
        count += len(y)
    model.train()
    return total / count, right / count


def main():
    train_tf, valid_tf = make_transforms()
    train = DataLoader(FruitPhotos(800, 1, train_tf), batch_size=32, shuffle=True)
    valid = DataLoader(FruitPhotos(160, 2, valid_tf), batch_size=80)
    model = squeezenet1_1(num_classes=CLASSES, dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=3 * len(train)
    )
    for epoch in range(3):
        total = 0.0
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        loss, acc = evaluate(model, valid)
        print(f"epoch {epoch} train {total / len(train):.4f} valid {loss:.4f} accuracy {acc:.3f}")
    print(f"RESULT {evaluate(model, valid)[0]:.4f}")


if __name__ == "__main__":
    main()
