"""Defect classes on a production line; rare classes count as much as frequent ones."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
SHARE = torch.tensor([0.38, 0.25, 0.16, 0.1, 0.05, 0.03, 0.02, 0.01])
CLASSES = len(SHARE)


def parts(n, centres, share=SHARE):
    y = torch.multinomial(share, n, replacement=True)
    x = centres[y] + 0.6 * torch.randn(n, centres.shape[1])
    x[:, 0] = x[:, 0].abs()
    return x, y


class BalancedLoss(nn.Module):
    """Cross entropy, each row weighted by the inverse frequency of its class in the batch (mean weight 1)."""

    def forward(self, logits, y):
        count = torch.bincount(y, minlength=CLASSES)
        weight = 1.0 / count
        weight = weight / weight.mean()
        each = nn.functional.cross_entropy(logits, y, reduction="none")
        return (weight[y] * each).mean()


def balanced_error(model, loader):
    right, seen = torch.zeros(CLASSES), torch.zeros(CLASSES)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            hit = (model(x).argmax(1) == y).float()
            right.index_add_(0, y, hit)
            seen.index_add_(0, y, torch.ones_like(hit))
    model.train()
    return 1 - (right / seen).mean().item()


def main():
    torch.manual_seed(12)
    centres = torch.randn(CLASSES, 12)
    train = DataLoader(TensorDataset(*parts(4000, centres)), batch_size=32, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(*parts(2000, centres, torch.ones(CLASSES))), batch_size=500)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES))
    criterion = BalancedLoss()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for epoch in range(5):
        running = 0.0
        for x, y in train:
            loss = criterion(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
        print(f"epoch {epoch:2d} train {running / len(train):.4f} valid {balanced_error(model, valid):.4f}")
    print("RESULT", balanced_error(model, valid))


if __name__ == "__main__":
    main()
