"""Glyph recognition with random erasing."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 8


class Glyphs(Dataset):
    def __init__(self, n, seed, train):
        g = torch.Generator().manual_seed(seed)
        self.train = train
        masks = (torch.rand(NUM_CLASSES, 1, 10, 10, generator=torch.Generator().manual_seed(1)) < 0.35).float()
        self.targets = torch.randint(0, NUM_CLASSES, (n,), generator=g)
        self.images = masks[self.targets] + 0.7 * torch.randn(n, 1, 10, 10, generator=g)

    def __len__(self):
        return len(self.targets)

    def random_erase(self, img, size=5):
        top, left = torch.randint(0, 11 - size, (2,)).tolist()
        img[:, top:top + size, left:left + size] = 0.0
        return img

    def __getitem__(self, index):
        img = self.images[index]
        if self.train:
            img = self.random_erase(img)
        return img, self.targets[index]


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 3, padding=1)
        self.c2 = nn.Conv2d(12, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 25, NUM_CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        return self.fc(F.relu(self.c2(x)).flatten(1))


def evaluate(net, loader):
    net.eval()
    loss, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            loss += F.cross_entropy(net(x), y, reduction="sum").item()
            n += len(y)
    net.train()
    return loss / n


def main():
    torch.set_num_threads(1)
    torch.manual_seed(23)
    train = DataLoader(Glyphs(1000, 3, train=True), batch_size=50, shuffle=True)
    val = DataLoader(Glyphs(400, 4, train=False), batch_size=200)
    net = SmallCNN()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(14):
        for x, y in train:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        print(f"epoch {epoch:2d} train {loss.item():.4f} val {evaluate(net, val):.4f}")
    print("RESULT", evaluate(net, val))


if __name__ == "__main__":
    main()
