"""Detect rare particles with a compact RetinaNet; most of the images hold none."""
import torch

torch.set_num_threads(1)
torch.manual_seed(52)

from torch import nn
from torch.utils.data import DataLoader
from torchvision import tv_tensors
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import box_iou
from torchvision.transforms import v2

SIZE = 64


def particles(n, seed, rate=0.4):
    g = torch.Generator().manual_seed(seed)
    axis = torch.arange(SIZE).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    items = []
    for _ in range(n):
        image = 0.3 * torch.rand(3, SIZE, SIZE, generator=g)
        boxes = torch.zeros(0, 4)
        if torch.rand(1, generator=g) < rate:
            r = 7 + 4 * torch.rand(1, generator=g).item()
            cx, cy = (r + (SIZE - 2 * r) * torch.rand(2, generator=g)).tolist()
            image = image + 0.7 * (((xx - cx) ** 2 + (yy - cy) ** 2) < r * r).float()
            boxes = torch.tensor([[cx - r, cy - r, cx + r, cy + r]])
        items.append((image, boxes))
    return items


augment = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()])


def collate(batch):
    images, targets = [], []
    for image, boxes in batch:
        boxes = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(SIZE, SIZE))
        image, boxes = augment(tv_tensors.Image(image), boxes)
        images.append(image.as_subclass(torch.Tensor))
        targets.append({
            "boxes": boxes.as_subclass(torch.Tensor).reshape(-1, 4),
            "labels": torch.zeros(len(boxes), dtype=torch.int64),
        })
    return images, targets


class Backbone(nn.Sequential):
    out_channels = 32

    def __init__(self):
        layers, c = [], 3
        for width in (16, 32, 32):
            layers += [nn.Conv2d(c, width, 3, stride=2, padding=1), nn.GroupNorm(4, width),
                       nn.ReLU()]
            c = width
        super().__init__(*layers)


@torch.no_grad()
def mistakes(model, items):
    """Share of images with a missed particle or with a detection where there is none."""
    model.eval()
    wrong = 0
    for image, boxes in items:
        found = model([image])[0]
        found = found["boxes"][found["scores"] > 0.4]
        if len(boxes) == 0:
            wrong += int(len(found) > 0)
        else:
            wrong += int(len(found) == 0 or box_iou(found, boxes).max() < 0.5)
    return wrong / len(items)


def main():
    model = RetinaNet(
        Backbone(), num_classes=1, anchor_generator=AnchorGenerator(((14, 20),), ((1.0,),)),
        min_size=SIZE, max_size=SIZE, image_mean=[0.2] * 3, image_std=[0.2] * 3,
        detections_per_img=10, topk_candidates=50,
    )
    loader = DataLoader(particles(480, 1), batch_size=4, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=len(loader))
    empty = 0
    model.train()
    for step, (images, targets) in enumerate(loader):
        losses = model(images, targets)
        empty += sum(len(t["boxes"]) == 0 for t in targets)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 30 == 29:
            print(f"step {step} " + " ".join(f"{k} {v.item():.4f}" for k, v in losses.items())
                  + f" empty images so far {empty}")
    print(f"RESULT {mistakes(model, particles(120, 2)):.4f}")


if __name__ == "__main__":
    main()
