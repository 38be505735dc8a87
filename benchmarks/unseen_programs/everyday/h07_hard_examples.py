"""Train a digit reader with a sampler that rests samples which are already solved."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

torch.set_num_threads(1)
torch.manual_seed(107)

SIZE, CLASSES, EPOCHS = 14, 8, 6
SEGMENTS = torch.tensor([
    [1, 1, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 0, 1], [1, 0, 1, 1, 0, 1, 1],
    [0, 1, 1, 1, 0, 1, 0], [1, 1, 0, 1, 0, 1, 1], [1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1, 0]])
PLACES = [(0, slice(1, 5)), (slice(1, 5), 0), (slice(1, 5), 5), (5, slice(1, 5)),
          (slice(6, 10), 0), (slice(6, 10), 5), (10, slice(1, 5))]


def digits(n):
    label = torch.randint(0, CLASSES, (n,))
    glyphs = torch.zeros(CLASSES, 11, 6)
    for c in range(CLASSES):
        for s, place in enumerate(PLACES):
            if SEGMENTS[c, s]:
                glyphs[c][place] = 1.0
    image = 0.3 * torch.randn(n, SIZE, SIZE)
    row, col = torch.randint(0, 4, (n,)), torch.randint(0, 5, (n,))
    for i in range(n):
        image[i, row[i]:row[i] + 11, col[i]:col[i] + 6] += glyphs[label[i]]
    return image.unsqueeze(1), label


class Reader(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(2 * width * 49, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.body(x)


@torch.no_grad()
def losses_of(model, x, y):
    model.eval()
    losses = torch.cat([F.cross_entropy(model(x[i:i + 500]), y[i:i + 500], reduction="none")
                        for i in range(0, len(x), 500)])
    model.train()
    return losses


def main():
    x, y = digits(2000)
    val_x, val_y = digits(500)
    train_set = TensorDataset(x, y)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    weights = torch.ones(len(x))
    # a fixed part of the training samples, to compare with the validation
    probe = Subset(train_set, list(range(200)))
    probe_x, probe_y = (torch.stack(column) for column in zip(*probe))
    for epoch in range(EPOCHS):
        sampler = WeightedRandomSampler(weights, num_samples=1500, replacement=True)
        for bx, by in DataLoader(train_set, batch_size=40, sampler=sampler):
            loss = F.cross_entropy(model(bx), by)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        losses = losses_of(model, x, y)
        # solved samples rest for one epoch; every second epoch draws from all of them
        solved = losses < 0.01
        weights = torch.ones(len(x)) if epoch % 2 else (~solved).float() + 1e-3 * solved
        print(f"epoch {epoch} resting {int(solved.sum())} "
              f"probe {losses_of(model, probe_x, probe_y).mean():.4f} "
              f"val {losses_of(model, val_x, val_y).mean():.4f}")
    print(f"RESULT {losses_of(model, val_x, val_y).mean().item():.5f}")


if __name__ == "__main__":
    main()
