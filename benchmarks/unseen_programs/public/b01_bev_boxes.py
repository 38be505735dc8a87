"""Trains a small monocular bird's-eye-view box detector on rendered scenes."""
import argparse
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--grid", type=int, default=12)
parser.add_argument("--loss-weights", type=float, nargs=4, default=[1.0, 1.0, 1.0, 1.0])
args = parser.parse_args([])


def render(n, grid, gen):
    """Scenes with one or two oriented boxes: image, heatmap, offsets, sizes, headings, mask."""
    size = grid * 2
    ys, xs = torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")
    image = 0.1 * torch.randn(n, 3, size, size, generator=gen)
    cy, cx = torch.meshgrid(torch.arange(grid).float(), torch.arange(grid).float(), indexing="ij")
    heat = torch.zeros(n, 1, grid, grid)
    pos, dim, ang = (torch.zeros(n, 2, grid, grid) for _ in range(3))
    mask = torch.zeros(n, 1, grid, grid)
    for i in range(n):
        for _ in range(1 + int(torch.randint(0, 2, (1,), generator=gen))):
            x, y = (2 + torch.rand(2, generator=gen) * (grid - 5)).tolist()
            w, h = (1.0 + 1.5 * torch.rand(2, generator=gen)).tolist()
            theta = float(torch.rand(1, generator=gen)) * 3.14159
            u, v = xs - 2 * x, ys - 2 * y
            c, s = torch.tensor(theta).cos(), torch.tensor(theta).sin()
            a, b = c * u + s * v, -s * u + c * v
            body = (torch.sigmoid(4 * (w + 0.5 - a.abs())) * torch.sigmoid(4 * (h + 0.5 - b.abs())))
            image[i, 0] += body
            image[i, 1] += body * torch.tanh(a)
            image[i, 2] += body * torch.tanh(b)
            near = torch.exp(-((cx - x) ** 2 + (cy - y) ** 2) / 2.0)
            heat[i, 0] = torch.maximum(heat[i, 0], near)
            cell = near > 0.6
            pos[i, 0][cell], pos[i, 1][cell] = (x - cx)[cell], (y - cy)[cell]
            dim[i, 0][cell], dim[i, 1][cell] = w - 1.75, h - 1.75
            ang[i, 0][cell], ang[i, 1][cell] = c, s
            mask[i, 0][cell] = 1.0
    return image, heat, pos, dim, ang, mask


class TopDownNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.ReLU())
        self.topdown = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())
        self.head = nn.Conv2d(width, 7, 1)

    def forward(self, image):
        feats = self.front(image)
        out = self.head(feats + self.topdown(feats))
        return out.split([1, 2, 2, 2], dim=1)


def masked_l1(pred, target, mask):
    return (F.l1_loss(pred, target, reduction="none") * mask).sum() / mask.sum().clamp(min=1)


def compute_loss(preds, labels, weights):
    heat, pos, dim, ang, mask = labels
    score_loss = (F.smooth_l1_loss(preds[0], heat, reduction="none")
                  * (1 + 9 * heat)).sum((1, 2, 3))
    score_loss = score_loss.mean()
    terms = [score_loss, masked_l1(preds[1], pos, mask), masked_l1(preds[2], dim, mask),
             masked_l1(preds[3], ang, mask)]
    total_loss = sum(w * t for w, t in zip(weights, terms))
    loss_dict = dict(zip(("score", "position", "dimension", "angle"), (t.item() for t in terms)))
    loss_dict["total"] = total_loss.item()
    return score_loss, loss_dict


def run_epoch(model, data, optimizer=None):
    model.train(optimizer is not None)
    stats, count = defaultdict(float), 0
    n = data[0].shape[0]
    order = torch.randperm(n) if optimizer else torch.arange(n)
    with torch.set_grad_enabled(optimizer is not None):
        for idx in order.split(args.batch_size):
            batch = [t[idx] for t in data]
            loss, loss_dict = compute_loss(model(batch[0]), batch[1:], args.loss_weights)
            if optimizer:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for key, value in loss_dict.items():
                stats[key] += value
            count += 1
    return {k: v / count for k, v in stats.items()}


gen = torch.Generator().manual_seed(3)
train, val = render(256, args.grid, gen), render(64, args.grid, gen)
net = TopDownNet()
optim = torch.optim.Adam(net.parameters(), args.lr)
for epoch in range(1, args.epochs + 1):
    tr = run_epoch(net, train, optim)
    va = run_epoch(net, val)
    print(f"=== epoch {epoch}")
    for key in va:
        print(f"  {key:9s}: train {tr[key]:.4f}  val {va[key]:.4f}")
print("RESULT", round(va["total"], 5))
