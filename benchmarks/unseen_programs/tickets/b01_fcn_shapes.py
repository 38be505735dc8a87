"""Train a small FCN on drawn shapes and report pixel error on held-out images."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(11)
rng = np.random.default_rng(11)
N_CLASS = 4
BASE = np.array([[.5, .5, .5], [.8, .3, .3], [.3, .7, .4], [.35, .4, .8]], np.float32)


def draw(n, size=32):
    yy, xx = np.mgrid[:size, :size]
    imgs = np.zeros((n, 3, size, size), np.float32)
    lbls = np.zeros((n, size, size), np.int64)
    for k in range(n):
        imgs[k] = rng.normal(0.45, 0.2, (3, 1, 1))
        for _ in range(rng.integers(2, 5)):
            cls = int(rng.integers(1, N_CLASS))
            cy, cx, r = rng.integers(5, size - 5, 2).tolist() + [rng.integers(3, 8)]
            if cls == 1:
                m = (yy - cy) ** 2 + (xx - cx) ** 2 <= r * r
            elif cls == 2:
                m = (abs(yy - cy) <= r) & (abs(xx - cx) <= r)
            else:
                m = abs(yy - cy) + abs(xx - cx) <= r
            imgs[k][:, m] = (BASE[cls] + rng.normal(0, 0.12, 3))[:, None]
            lbls[k][m] = cls
        lbls[k][rng.random((size, size)) < 0.02] = -1
    imgs += rng.normal(0, 0.08, imgs.shape)
    return torch.from_numpy((imgs - 0.45) / 0.25).float(), torch.from_numpy(lbls)


class FCN8(nn.Module):
    def __init__(self, width=10):
        super().__init__()

        def block(i, o):
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

        self.conv1, self.conv2 = block(3, width), block(width, 2 * width)
        self.conv3 = block(2 * width, 3 * width)
        self.drop = nn.Dropout2d(0.3)
        self.score3 = nn.Conv2d(3 * width, N_CLASS, 1)
        self.score2 = nn.Conv2d(2 * width, N_CLASS, 1)
        self.score1 = nn.Conv2d(width, N_CLASS, 1)

    def forward(self, x):
        p1 = self.conv1(x)
        p2 = self.conv2(F.max_pool2d(p1, 2))
        p3 = self.drop(self.conv3(F.max_pool2d(p2, 2)))
        s = F.interpolate(self.score3(p3), scale_factor=2, mode="bilinear") + self.score2(p2)
        return F.interpolate(s, scale_factor=2, mode="bilinear") + self.score1(p1)


def cross_entropy2d(score, target):
    return F.cross_entropy(score, target, ignore_index=-1)


class Trainer:
    def __init__(self, model, optimizer, train_loader, val_loader, max_iter, interval_validate):
        self.model, self.optim = model, optimizer
        self.train_loader, self.val_loader = train_loader, val_loader
        self.max_iter, self.interval_validate = max_iter, interval_validate
        self.iteration, self.epoch = 0, 0

    def validate(self):
        self.model.eval()
        loss = wrong = count = 0.0
        with torch.no_grad():
            for data, target in self.val_loader:
                score = self.model(data)
                loss += cross_entropy2d(score, target).item() * len(data)
                keep = target >= 0
                wrong += (score.argmax(1) != target)[keep].sum().item()
                count += keep.sum().item()
        print(f"iter {self.iteration:4d} val_loss {loss / len(self.val_loader.dataset):.4f} "
              f"pixel_error {wrong / count:.4f}")
        return loss / len(self.val_loader.dataset)

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for data, target in self.train_loader:
            if self.iteration % self.interval_validate == 0:
                self.validate()
            self.optim.zero_grad()
            loss = cross_entropy2d(self.model(data), target)
            loss.backward()
            self.optim.step()
            total += loss.item()
            self.iteration += 1
            if self.iteration >= self.max_iter:
                break
        print(f"epoch {self.epoch} train_loss {total / len(self.train_loader):.4f}")

    def train(self):
        while self.iteration < self.max_iter:
            self.train_epoch()
            self.epoch += 1


def main():
    train_set, val_set = TensorDataset(*draw(96)), TensorDataset(*draw(60))
    model = FCN8()
    optim = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    trainer = Trainer(model, optim, DataLoader(train_set, batch_size=8, shuffle=True),
                      DataLoader(val_set, batch_size=30), max_iter=240, interval_validate=12)
    trainer.train()
    print("RESULT", trainer.validate())


if __name__ == "__main__":
    main()
