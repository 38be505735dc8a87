"""Trains a fully convolutional segmentation network with validation inside the epoch."""
import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(33)

N_CLASS, SIZE = 4, 24


def scenes(n):
    image, label = torch.zeros(n, 3, SIZE, SIZE), torch.zeros(n, SIZE, SIZE, dtype=torch.long)
    colours = torch.tensor([[0.0, 0, 0], [1.0, 0.3, 0.2], [0.2, 1.0, 0.3], [0.3, 0.2, 1.0]])
    for i in range(n):
        for _ in range(4):
            c = int(torch.randint(1, N_CLASS, (1,)))
            y, x = torch.randint(0, SIZE - 8, (2,)).tolist()
            h, w = torch.randint(4, 9, (2,)).tolist()
            label[i, y:y + h, x:x + w] = c
        image[i] = colours[label[i]].permute(2, 0, 1) + 1.3 * torch.randn(3, SIZE, SIZE)
    label[torch.rand(label.shape) < 0.03] = -1
    return image, label


class FCN(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.conv1 = nn.Conv2d(3, w, 3, padding=1)
        self.conv2 = nn.Conv2d(w, w, 3, padding=1)
        self.fc6 = nn.Conv2d(w, 4 * w, 3, padding=1)
        self.fc7 = nn.Conv2d(4 * w, 4 * w, 1)
        self.drop6, self.drop7 = nn.Dropout2d(0.5), nn.Dropout2d(0.5)
        self.score = nn.Conv2d(4 * w, N_CLASS, 1)
        self.score_pool = nn.Conv2d(w, N_CLASS, 1)

    def forward(self, x):
        h = F.relu(self.conv1(x))
        pool = F.max_pool2d(F.relu(self.conv2(h)), 2)
        h = self.drop6(F.relu(self.fc6(pool)))
        h = self.drop7(F.relu(self.fc7(h)))
        h = self.score(h) + self.score_pool(pool)
        return F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)


def cross_entropy2d(score, target):
    return F.cross_entropy(score, target, ignore_index=-1)


class Trainer:
    def __init__(self, model, optimizer, train_set, val_set, out, max_iter, interval_validate):
        self.model, self.optim = model, optimizer
        self.train_set, self.val_set, self.out = train_set, val_set, out
        self.max_iter, self.interval_validate = max_iter, interval_validate
        self.epoch = self.iteration = 0
        self.best, self.running = math.inf, 0.0

    def validate(self):
        self.model.eval()
        losses, hit, seen = [], 0, 0
        with torch.no_grad():
            for x, y in zip(self.val_set[0].split(20), self.val_set[1].split(20)):
                score = self.model(x)
                losses.append(cross_entropy2d(score, y).item())
                hit += ((score.argmax(1) == y) & (y >= 0)).sum().item()
                seen += (y >= 0).sum().item()
        val_loss = sum(losses) / len(losses)
        print(f"epoch {self.epoch} iter {self.iteration} train {self.running:.4f} "
              f"val {val_loss:.4f} acc {hit / seen:.4f}")
        torch.save({"iteration": self.iteration, "model_state_dict": self.model.state_dict(),
                    "optim_state_dict": self.optim.state_dict()},
                   os.path.join(self.out, "checkpoint.pth.tar"))
        self.best = min(self.best, val_loss)
        return val_loss

    def train_epoch(self):
        self.model.train()
        for idx in torch.randperm(len(self.train_set[0])).split(1):
            if self.iteration % self.interval_validate == 0:
                self.validate()
            self.iteration += 1
            data, target = self.train_set[0][idx], self.train_set[1][idx]
            self.optim.zero_grad()
            loss = cross_entropy2d(self.model(data), target)
            if math.isnan(loss.item()):
                raise ValueError("loss is nan while training")
            loss.backward()
            self.optim.step()
            self.running = 0.95 * self.running + 0.05 * loss.item()
            if self.iteration >= self.max_iter:
                break

    def train(self):
        while self.iteration < self.max_iter:
            self.train_epoch()
            self.epoch += 1
        return self.validate()


train_set, val_set = scenes(6), scenes(40)
model = FCN()
optim = torch.optim.Adam(model.parameters(), lr=3e-3)
with tempfile.TemporaryDirectory() as out:
    trainer = Trainer(model, optim, train_set, val_set, out, max_iter=600, interval_validate=50)
    result = trainer.train()
print("RESULT", round(result, 5))
