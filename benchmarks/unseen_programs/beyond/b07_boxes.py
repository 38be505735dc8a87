"""Trains a small network that finds the box of one bright object in an image."""
import torch
import torch.nn as nn
from torchvision.ops import box_convert, box_iou, generalized_box_iou_loss

torch.set_num_threads(1)
torch.manual_seed(17)

SIDE = 32


def scenes(n, seed):
    """Images with one rectangle each, and its box as centre, width and height in 0 to 1."""
    gen = torch.Generator().manual_seed(seed)
    images = 0.3 * torch.randn(n, 1, SIDE, SIDE, generator=gen)
    size = torch.randint(5, 16, (n, 2), generator=gen)
    boxes = torch.empty(n, 4)
    for i in range(n):
        w, h = size[i].tolist()
        x = int(torch.randint(0, SIDE - w, (1,), generator=gen))
        y = int(torch.randint(0, SIDE - h, (1,), generator=gen))
        images[i, 0, y:y + h, x:x + w] += 1.0
        boxes[i] = torch.tensor([x + w / 2, y + h / 2, w, h]) / SIDE
    return images, boxes


class BoxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(24 * 16, 64), nn.ReLU(),
                                  nn.Linear(64, 4))

    def forward(self, x):
        return self.head(self.features(x)).sigmoid()


def box_loss(predicted, wanted):
    return generalized_box_iou_loss(predicted, wanted, reduction="mean")


@torch.no_grad()
def missed_overlap(model, images, boxes):
    model.eval()
    predicted = box_convert(model(images), "cxcywh", "xyxy")
    wanted = box_convert(boxes, "cxcywh", "xyxy")
    overlap = box_iou(predicted, wanted).diagonal()
    model.train()
    return 1.0 - overlap.mean().item()


train_images, train_boxes = scenes(1600, 1)
val_images, val_boxes = scenes(300, 2)
model = BoxNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(10):
    total = 0.0
    for chunk in torch.randperm(len(train_images)).split(64):
        loss = box_loss(model(train_images[chunk]), train_boxes[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(chunk)
    print(f"epoch {epoch} loss {total / len(train_images):.4f} "
          f"missed {missed_overlap(model, val_images, val_boxes):.4f}")
print("RESULT", round(missed_overlap(model, val_images, val_boxes), 4))
