"""Keypoint detection: a small network paints a map of blob centres."""
import torch
from torch import nn
from torchvision.ops import sigmoid_focal_loss

torch.manual_seed(0)
torch.set_num_threads(1)
SIZE = 20


def scenes(n, g):
    where = torch.zeros(n, 1, SIZE, SIZE)
    spots = torch.randint(2, SIZE - 2, (n, 4, 2), generator=g)
    for i in range(n):
        where[i, 0, spots[i, :, 0], spots[i, :, 1]] = 1
    kernel = torch.tensor([[0.2, 0.6, 0.2], [0.6, 1.0, 0.6], [0.2, 0.6, 0.2]])[None, None]
    image = torch.conv2d(where, kernel, padding=1)
    return image + 0.1 * torch.randn(image.shape, generator=g), where


class HeatmapHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.out = nn.Conv2d(width, 1, 1)
        nn.init.constant_(self.out.bias, -2.0)

    def forward(self, features):
        return {"heat": self.out(features).sigmoid(), "features": features}


class Detector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
                                   nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.head = HeatmapHead(width)

    def forward(self, image):
        return self.head(self.trunk(image))


def detection_loss(prediction, where):
    return sigmoid_focal_loss(prediction["heat"], where, alpha=0.75, gamma=2.0, reduction="sum") / where.sum()


g = torch.Generator().manual_seed(4)
detector = Detector()
optimizer = torch.optim.AdamW(detector.parameters(), lr=5e-3)
for step in range(100):
    image, where = scenes(8, g)
    loss = detection_loss(detector(image), where)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    image, where = scenes(64, g)
    heat = detector(image)["heat"]
    found = (heat > 0.5).float()
    overlap = (found * where).sum() / (found + where).clamp(max=1).sum()
print("RESULT", 1 - overlap.item())
