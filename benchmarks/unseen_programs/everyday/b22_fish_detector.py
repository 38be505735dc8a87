"""Localise one fish per sonar image: box regression and species, after a TensorFlow model."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--bn-decay", type=float, default=0.9997)
parser.add_argument("--seed", type=int, default=22)
args = parser.parse_args([])
torch.manual_seed(args.seed)

SIZE, SPECIES = 24, 3


def sonar(n):
    centre = 5 + 14 * torch.rand(n, 2)
    species = torch.randint(0, SPECIES, (n,))
    aspect = torch.tensor([1.0, 1.8, 0.55])[species]
    half = torch.stack([2.0 * aspect, 2.0 / aspect], 1) * (1 + 0.25 * torch.rand(n, 1))
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    dx = (xx[None] - centre[:, :1, None]) / half[:, :1, None]
    dy = (yy[None] - centre[:, 1:, None]) / half[:, 1:, None]
    echo = 3.0 * torch.exp(-0.5 * (dx ** 2 + dy ** 2)) + 0.7 * torch.rand(n, SIZE, SIZE) + 1.0
    box = torch.cat([centre / SIZE, half / SIZE * 2], dim=1)
    return echo.unsqueeze(1), box, species


class ConvUnit(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(cout, eps=1e-3, momentum=1 - args.bn_decay)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Detector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            ConvUnit(1, width, 2), ConvUnit(width, width, 1), ConvUnit(width, 2 * width, 2))
        self.neck = nn.Sequential(nn.Linear(2 * width * 36, 64), nn.ReLU())
        self.box = nn.Linear(64, 4)
        self.species = nn.Linear(64, SPECIES)

    def forward(self, x):
        h = self.neck(self.body(x).flatten(1))
        return torch.sigmoid(self.box(h)), self.species(h)


def detection_loss(outputs, box, species):
    pred_box, logits = outputs
    return 10.0 * F.smooth_l1_loss(pred_box, box, beta=0.1) + F.cross_entropy(logits, species)


def validate(model, data):
    model.eval()
    with torch.no_grad():
        loss = detection_loss(model(data[0]), data[1], data[2]).item()
    model.train()
    return loss


def main():
    echo, box, species = sonar(2000)
    val = sonar(400)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [100, 140], gamma=0.3)
    for step in range(1, args.steps + 1):
        idx = torch.randint(0, len(echo), (args.batch,))
        loss = detection_loss(model(echo[idx]), box[idx], species[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 40 == 0:
            print(f"step {step} train {loss.item():.4f} val {validate(model, val):.4f}")
    print(f"RESULT {validate(model, val):.5f}")


if __name__ == "__main__":
    main()
