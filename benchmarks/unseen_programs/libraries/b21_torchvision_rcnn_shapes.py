"""Detect discs, squares and crosses with a compact Faster R-CNN."""
import torch

torch.set_num_threads(1)
torch.manual_seed(16)

from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.ops import MultiScaleRoIAlign, box_iou

SIZE = 64
SHAPES = ["disc", "square", "cross"]


class ShapeImages(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        axis = torch.arange(SIZE)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        self.items = []
        for _ in range(n):
            image = 0.3 * torch.rand(3, SIZE, SIZE, generator=g)
            boxes, labels = [], []
            for left in (2, 34):
                kind = int(torch.randint(0, len(SHAPES), (1,), generator=g))
                r = int(torch.randint(8, 13, (1,), generator=g))
                cx = left + r + int(torch.randint(0, 30 - 2 * r, (1,), generator=g))
                cy = r + int(torch.randint(0, SIZE - 2 * r, (1,), generator=g))
                dx, dy = (xx - cx).abs(), (yy - cy).abs()
                inside = (dx <= r) & (dy <= r)
                if kind == 0:
                    inside = dx ** 2 + dy ** 2 <= r ** 2
                elif kind == 2:
                    inside = inside & ((dx <= 2) | (dy <= 2))
                image[:, inside] += 0.5
                boxes.append([cx - r, cy - r, cx + r + 1, cy + r + 1])
                labels.append(kind)
            self.items.append((image, {
                "boxes": torch.tensor(boxes, dtype=torch.float32),
                "labels": torch.tensor(labels),
            }))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    return tuple(zip(*batch))


def build_model(num_classes, width=32):
    layers, c = [], 3
    for _ in range(3):
        layers += [nn.Conv2d(c, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
        c = width
    backbone = nn.Sequential(*layers)
    backbone.out_channels = width
    return FasterRCNN(
        backbone, rpn_anchor_generator=AnchorGenerator(((18, 24),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=5, sampling_ratio=2),
        box_head=TwoMLPHead(width * 25, 64), box_predictor=FastRCNNPredictor(64, num_classes),
        min_size=SIZE, max_size=SIZE, image_mean=[0.2] * 3, image_std=[0.2] * 3,
        rpn_pre_nms_top_n_train=100, rpn_post_nms_top_n_train=40, rpn_pre_nms_top_n_test=100,
        rpn_post_nms_top_n_test=30, rpn_batch_size_per_image=48, box_batch_size_per_image=24,
    )


@torch.no_grad()
def miss_rate(model, data):
    """Share of objects without a detection of their class at overlap 0.5 and score 0.3."""
    model.eval()
    missed, total = 0, 0
    for image, target in data:
        found = model([image])[0]
        good = found["scores"] > 0.3
        for box, label in zip(target["boxes"], target["labels"]):
            same = found["boxes"][good & (found["labels"] == label)]
            hit = len(same) > 0 and box_iou(same, box[None]).max() > 0.5
            missed += int(not hit)
            total += 1
    return missed / total


def main():
    train, valid = ShapeImages(400, 1), ShapeImages(80, 2)
    loader = DataLoader(train, batch_size=4, shuffle=True, collate_fn=collate)
    model = build_model(num_classes=len(SHAPES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=1e-3)
    for epoch in range(2):
        model.train()
        sums = {}
        for images, targets in loader:
            losses = model(list(images), list(targets))
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
            for k, v in losses.items():
                sums[k] = sums.get(k, 0.0) + v.item() / len(loader)
        print(f"epoch {epoch} " + " ".join(f"{k} {v:.3f}" for k, v in sums.items()))
    print(f"RESULT {miss_rate(model, valid):.4f}")


if __name__ == "__main__":
    main()
