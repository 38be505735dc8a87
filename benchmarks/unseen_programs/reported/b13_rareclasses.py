"""Imbalanced tabular classification with balanced sampling."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Claims(Dataset):
    FRACTIONS = torch.tensor([0.62, 0.22, 0.11, 0.05])

    def __init__(self, n, seed, balanced=False):
        g = torch.Generator().manual_seed(seed)
        probs = torch.full((4,), 0.25) if balanced else self.FRACTIONS
        self.y = torch.multinomial(probs, n, replacement=True, generator=g)
        centres = 1.6 * torch.randn(4, 2, 14, generator=torch.Generator().manual_seed(500))
        which = torch.randint(0, 2, (n,), generator=g)
        self.x = centres[self.y, which] + 1.3 * torch.randn(n, 14, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def balanced_loader(dataset, batch_size):
    counts = torch.bincount(dataset.y, minlength=4).float()
    weights = counts.sum() / counts
    sampler = WeightedRandomSampler(weights, num_samples=len(dataset), replacement=True)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler)


def make_model():
    return nn.Sequential(
        nn.Linear(14, 64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, 4),
    )


def balanced_error(model, loader):
    model.eval()
    hit, count = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        for x, y in loader:
            ok = (model(x).argmax(1) == y).float()
            hit.scatter_add_(0, y, ok)
            count.scatter_add_(0, y, torch.ones_like(ok))
    return 1 - (hit / count).mean().item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(31)
    train_loader = balanced_loader(Claims(3000, 1), batch_size=64)
    val_loader = DataLoader(Claims(800, 2, balanced=True), batch_size=200)
    model = make_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for epoch in range(6):
        model.train()
        total = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(train_loader):.4f}, val {balanced_error(model, val_loader):.4f}")
    print("RESULT", balanced_error(model, val_loader))


if __name__ == "__main__":
    main()
