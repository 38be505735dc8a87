"""Predict protein solubility from descriptors and keep the epoch with the best validation."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.set_num_threads(1)
torch.manual_seed(2727)

DESCRIPTORS = 40


def proteins(n):
    g = torch.Generator().manual_seed(12)
    direction = torch.randn(DESCRIPTORS, 2, generator=g) / DESCRIPTORS ** 0.5
    x = torch.randn(n, DESCRIPTORS)
    a, b = (x @ direction).unbind(1)
    soluble = torch.rand(n) < torch.sigmoid(2.0 * a + 1.5 * torch.sin(2 * b))
    return x, soluble.float()


def build(width=128):
    return nn.Sequential(
        nn.Linear(DESCRIPTORS, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))


@torch.no_grad()
def mean_loss(model, loader):
    model.eval()
    total = count = 0
    for x, y in loader:
        total += F.binary_cross_entropy_with_logits(model(x), y, reduction="sum").item()
        count += len(y)
    model.train()
    return total / count


class BestKeeper:
    def __init__(self, model):
        self.model, self.best, self.state, self.epoch = model, float("inf"), None, -1

    def offer(self, value, epoch):
        if value < self.best:
            self.best, self.epoch = value, epoch
            self.state = copy.deepcopy(self.model.state_dict())

    def restore(self):
        self.model.load_state_dict(self.state)
        print(f"epoch {self.epoch} kept, validation {self.best:.4f}")


def main():
    dataset = TensorDataset(*proteins(700))
    test = DataLoader(TensorDataset(*proteins(2000)), batch_size=500)
    train_set, val_set = random_split(dataset, [560, 140])
    train_loader = DataLoader(dataset, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=140)
    print(f"{len(train_set)} proteins for training, {len(val_set)} for validation")

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=1e-3)
    keeper = BestKeeper(model)
    for epoch in range(18):
        total = 0.0
        for x, y in train_loader:
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        val_loss = mean_loss(model, val_loader)
        keeper.offer(val_loss, epoch)
        if epoch % 3 == 2:
            print(f"epoch {epoch} train {total / len(train_loader):.4f} val {val_loss:.4f}")
    keeper.restore()
    print(f"RESULT {mean_loss(model, test):.5f}")


if __name__ == "__main__":
    main()
