"""Glyph recognition from few scans; scans are never well centred."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(3)
SIDE, CLASSES = 12, 6


def draw(n, seed):
    gen = torch.Generator().manual_seed(seed)
    protos = (torch.rand(CLASSES, 5, 5, generator=torch.Generator().manual_seed(99)) > 0.5).float()
    labels = torch.randint(0, CLASSES, (n,), generator=gen)
    images = torch.zeros(n, SIDE, SIDE)
    for i in range(n):
        r, c = torch.randint(0, SIDE - 4, (2,), generator=gen).tolist()
        images[i, r:r + 5, c:c + 5] = protos[labels[i]]
    return images + 0.15 * torch.randn(images.shape, generator=gen), labels


def augment(img):
    shift = torch.randint(-5, 6, (2,)).tolist()
    img = torch.roll(img, shifts=shift, dims=(0, 1))
    return img + 0.1 * torch.randn_like(img)


def plain(img):
    return img


class Glyphs(Dataset):
    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(self.images[i]).flatten(), self.labels[i]


def build_loaders(n_total=900, n_val=600):
    images, labels = draw(n_total, seed=7)
    full = Glyphs(images, labels, augment)
    split = torch.Generator().manual_seed(0)
    train_set, val_set = random_split(full, [n_total - n_val, n_val], generator=split)
    val_set.dataset.transform = plain
    return (DataLoader(train_set, batch_size=50, shuffle=True),
            DataLoader(val_set, batch_size=200))


def run_epoch(model, loader, criterion, optimizer=None):
    model.train(optimizer is not None)
    loss_sum, wrong, n = 0.0, 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            loss_sum += loss.item() * len(y)
            wrong += (out.argmax(1) != y).sum().item()
            n += len(y)
    return loss_sum / n, wrong / n


def main():
    train, val = build_loaders()
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 192), nn.ReLU(), nn.Linear(192, 96), nn.ReLU(), nn.Linear(96, CLASSES))
    criterion = nn.CrossEntropyLoss()
    epochs = 100
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        tl, te = run_epoch(model, train, criterion, optimizer)
        scheduler.step()
        if epoch % 10 == 9:
            vl, ve = run_epoch(model, val, criterion)
            print(f"{epoch + 1:3d} train {tl:.3f}/{te:.3f} val {vl:.3f}/{ve:.3f}")
    print("RESULT", run_epoch(model, val, criterion)[1])


main()
