"""Fault classification with strongly unequal class counts."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.set_num_threads(1)
COUNTS = {"normal": 2400, "bearing": 260, "imbalance": 140, "leak": 60}


class Vibrations(Dataset):
    """Spectra of a machine; every class has its own pair of resonance lines."""

    def __init__(self, counts, seed):
        gen = torch.Generator().manual_seed(seed)
        rows, labels = [], []
        for k, n in enumerate(counts):
            base = 0.9 * torch.randn(n, 32, generator=gen)
            gain = 1.2 + 0.6 * torch.rand(n, 1, generator=gen)
            base[:, 4 + 5 * k] += gain[:, 0]
            base[:, 9 + 5 * k] += 1.5 * gain[:, 0]
            rows.append(base)
            labels.append(torch.full((n,), k))
        order = torch.randperm(sum(counts), generator=gen)
        self.x = torch.cat(rows)[order]
        self.y = torch.cat(labels)[order]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def balanced_loader(dataset, batch_size):
    counts = torch.bincount(dataset.y).float()
    weights = 1.0 / counts
    sampler = WeightedRandomSampler(weights, num_samples=len(dataset), replacement=True)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler)


class Trainer:
    def __init__(self, model, lr=1e-3, epochs=8):
        self.model = model
        self.epochs = epochs
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)
        self.history = []

    def fit(self, train, val):
        for epoch in range(self.epochs):
            self.model.train()
            total = 0.0
            for x, y in train:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                total += loss.item()
            self.history.append(self.balanced_error(val))
            print(f"epoch {epoch} loss {total / len(train):.4f} balanced error {self.history[-1]:.4f}")
        return self.history[-1]

    @torch.no_grad()
    def balanced_error(self, loader):
        self.model.eval()
        hits = torch.zeros(len(COUNTS))
        seen = torch.zeros(len(COUNTS))
        for x, y in loader:
            right = (self.model(x).argmax(1) == y).float()
            hits.index_add_(0, y, right)
            seen.index_add_(0, y, torch.ones_like(right))
        return 1.0 - (hits / seen).mean().item()


def main():
    torch.manual_seed(11)
    train_set = Vibrations(list(COUNTS.values()), seed=1)
    val_set = Vibrations([200] * len(COUNTS), seed=2)
    train = balanced_loader(train_set, batch_size=64)
    val = DataLoader(val_set, batch_size=256)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, len(COUNTS)))
    print("RESULT", Trainer(model).fit(train, val))


if __name__ == "__main__":
    main()
