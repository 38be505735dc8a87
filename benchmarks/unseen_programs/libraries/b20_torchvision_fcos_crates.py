"""Detect crates in small warehouse images with a compact FCOS and flip augmentation."""
import torch

torch.set_num_threads(1)
torch.manual_seed(33)

from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import box_iou
from torchvision.transforms import v2

SIZE = 64


class Crates(Dataset):
    """One bright crate per image on a cluttered dark floor."""

    def __init__(self, n, seed, transforms=None):
        g = torch.Generator().manual_seed(seed)
        self.transforms = transforms
        wh = torch.randint(14, 26, (n, 2), generator=g)
        xy = (torch.rand(n, 2, generator=g) * (SIZE - 1 - wh)).long()
        self.boxes = torch.cat([xy, xy + wh], dim=1).float()
        self.images = 0.25 * torch.rand(n, 3, SIZE, SIZE, generator=g)
        for img, (x0, y0, x1, y1) in zip(self.images, self.boxes.long().tolist()):
            img[:, y0:y1, x0:x1] += torch.tensor([0.6, 0.45, 0.2])[:, None, None]
            img[:, y0:y1, (x0 + x1) // 2] = 0.1

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = tv_tensors.Image(self.images[i])
        target = {
            "boxes": self.boxes[i][None],
            "labels": torch.zeros(1, dtype=torch.int64),
        }
        if self.transforms is not None:
            image, target = self.transforms(image, target)
        return image, target


def collate(batch):
    images, targets = zip(*batch)
    return list(images), list(targets)


class Backbone(nn.Sequential):
    out_channels = 32

    def __init__(self):
        def block(c_in, c_out):
            return nn.Sequential(
                nn.Conv2d(c_in, c_out, 3, stride=2, padding=1), nn.GroupNorm(4, c_out), nn.ReLU()
            )

        super().__init__(block(3, 16), block(16, 32), block(32, 32))


def build_model():
    anchors = AnchorGenerator(sizes=((8,),), aspect_ratios=((1.0,),))
    return FCOS(
        Backbone(), num_classes=1, anchor_generator=anchors, min_size=SIZE, max_size=SIZE,
        image_mean=[0.2] * 3, image_std=[0.2] * 3, center_sampling_radius=1.5,
    )


@torch.no_grad()
def localisation_error(model, data):
    """One minus the mean overlap of the best scored box with the true box."""
    model.eval()
    total = 0.0
    for s in range(0, len(data), 32):
        images, targets = collate([data[i] for i in range(s, min(s + 32, len(data)))])
        for found, target in zip(model(images), targets):
            if len(found["boxes"]):
                best = found["boxes"][found["scores"].argmax()][None]
                total += box_iou(best, target["boxes"]).item()
    return 1 - total / len(data)


def main():
    augment = v2.Compose([
        v2.RandomHorizontalFlip(0.5),
        v2.RandomVerticalFlip(0.5),
        v2.ColorJitter(brightness=0.1),
    ])
    train, valid = Crates(480, 1, augment), Crates(96, 2)
    loader = DataLoader(train, batch_size=8, shuffle=True, collate_fn=collate)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=2 * len(loader)
    )
    for epoch in range(2):
        model.train()
        total = 0.0
        for images, targets in loader:
            losses = model(images, targets)
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
    print(f"RESULT {localisation_error(model, valid):.4f}")


if __name__ == "__main__":
    main()
