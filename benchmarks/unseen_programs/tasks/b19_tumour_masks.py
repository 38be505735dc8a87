"""Segments bright lesions in small scans with a U-shaped net and random flips."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

torch.set_num_threads(1)
torch.manual_seed(97)

SIDE = 24


def scans(n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    centre = torch.randint(4, SIDE - 4, (n, 2, 1, 1), generator=g)
    radius = 2.5 + 3.0 * torch.rand(n, 1, 1, generator=g)
    distance = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2).sqrt()
    mask = (distance < radius).float().unsqueeze(1)
    tissue = F.interpolate(torch.randn(n, 1, 4, 4, generator=g), size=SIDE, mode="bicubic")
    image = 1.4 * mask + 0.5 * tissue + 0.4 * torch.randn(n, 1, SIDE, SIDE, generator=g)
    return image, mask


class ScanSet(Dataset):
    def __init__(self, n, seed, augment):
        self.image, self.mask = scans(n, seed)
        self.augment = augment
        self.turn = v2.Compose([v2.RandomHorizontalFlip(0.5), v2.RandomVerticalFlip(0.5)])

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        image, mask = self.image[i], self.mask[i]
        if self.augment:
            image = self.turn(image)
            mask = self.turn(mask)
        return image, mask


class SmallUNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.out = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        a = self.down(x)
        b = self.deep(F.max_pool2d(a, 2))
        return self.out(torch.cat([a, F.relu(self.up(b))], dim=1))


def dice_loss(logits, mask):
    p = torch.sigmoid(logits)
    overlap = (p * mask).sum((1, 2, 3))
    size = p.sum((1, 2, 3)) + mask.sum((1, 2, 3))
    return 1 - ((2 * overlap + 1) / (size + 1)).mean()


def criterion(logits, mask):
    return F.binary_cross_entropy_with_logits(logits, mask) + 0.5 * dice_loss(logits, mask)


@torch.no_grad()
def validate(net, loader):
    net.eval()
    values = [criterion(net(x), y).item() for x, y in loader]
    net.train()
    return sum(values) / len(values)


if __name__ == "__main__":
    train = DataLoader(ScanSet(480, 1, augment=True), batch_size=32, shuffle=True)
    val = DataLoader(ScanSet(160, 2, augment=False), batch_size=80)
    net = SmallUNet()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for epoch in range(7):
        for image, mask in train:
            loss = criterion(net(image), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"epoch {epoch} train {loss.item():.4f} val {validate(net, val):.4f}")
    print("RESULT", validate(net, val))
