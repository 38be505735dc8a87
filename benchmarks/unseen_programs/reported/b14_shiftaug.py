"""Few-sample signal classification with random shift, sign and gain augmentation on the training part."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)


class PulseDataset(Dataset):
    def __init__(self, n, seed, transform=None):
        g = torch.Generator().manual_seed(seed)
        self.transform = transform
        self.labels = torch.randint(0, 4, (n,), generator=g)
        shapes = torch.zeros(4, 40)
        shapes[:, :10] = torch.randn(4, 10, generator=torch.Generator().manual_seed(77))
        shift = torch.randint(0, 40, (n,), generator=g)
        flip = torch.randint(0, 2, (n, 1), generator=g) * 2 - 1
        clean = torch.stack([shapes[y].roll(int(s)) for y, s in zip(self.labels, shift)])
        self.signals = 1.5 * flip * clean + 0.3 * torch.randn(n, 40, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        x = self.signals[i]
        if self.transform is not None:
            x = self.transform(x)
        return x, self.labels[i]


def augment(x):
    x = x.roll(int(torch.randint(0, x.numel(), ())))
    if torch.rand(()) < 0.5:
        x = -x
    return x * (0.9 + 0.2 * torch.rand(()))


def identity(x):
    return x


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(40, 192), nn.Linear(192, 96), nn.Linear(96, 4)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def get_loaders():
    full = PulseDataset(700, seed=12)
    train_set, val_set = random_split(full, [300, 400], generator=torch.Generator().manual_seed(0))
    train_set.dataset.transform = augment
    val_set.dataset.transform = identity
    return DataLoader(train_set, batch_size=30, shuffle=True), DataLoader(val_set, batch_size=100)


def main():
    torch.manual_seed(15)
    train_loader, val_loader = get_loaders()
    model = Classifier()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    epochs = 90
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        sched.step()
        if epoch % 15 == 14:
            print(f"epoch {epoch + 1} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        wrong = sum((model(x).argmax(1) != y).sum().item() for x, y in val_loader)
    print("RESULT", wrong / len(val_loader.dataset))


if __name__ == "__main__":
    main()
