import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(11)

SIZE = 24


def draw(n, seed):
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    images = torch.empty(n, 1, SIZE, SIZE)
    masks = torch.zeros(n, SIZE, SIZE, dtype=torch.long)
    for i in range(n):
        cy, cx, oy, ox = torch.randint(5, SIZE - 5, (4,), generator=g).tolist()
        r = int(torch.randint(3, 6, (1,), generator=g))
        masks[i][(yy - cy) ** 2 + (xx - cx) ** 2 <= r * r] = 1
        masks[i][((yy - oy).abs() <= 3) & ((xx - ox).abs() <= 2)] = 2
        level = torch.tensor([0.2, 0.5, 0.8])[masks[i]]
        images[i, 0] = level + 0.05 * torch.randn(SIZE, SIZE, generator=g)
    return images, masks


class CellDataset(Dataset):
    def __init__(self, images, masks, augment=False):
        self.images, self.masks, self.augment = images, masks, augment

    def __len__(self):
        return len(self.images)

    def photometric(self, img):
        gain = 1 + 0.25 * torch.randn(1)
        bias = 0.15 * torch.randn(1)
        img *= gain
        img += bias
        return img

    def __getitem__(self, i):
        img, mask = self.images[i], self.masks[i]
        if self.augment:
            img = self.photometric(img)
            if torch.rand(1) < 0.5:
                img, mask = img.flip(-1), mask.flip(-1)
        return img, mask


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class SmallUNet(nn.Module):
    def __init__(self, c=12, classes=3):
        super().__init__()
        self.enc1, self.enc2, self.mid = conv(1, c), conv(c, 2 * c), conv(2 * c, 2 * c)
        self.dec2, self.dec1 = conv(4 * c, c), conv(2 * c, c)
        self.out = nn.Conv2d(c, classes, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        m = self.mid(F.max_pool2d(e2, 2))
        d2 = self.dec2(torch.cat([F.interpolate(m, scale_factor=2), e2], 1))
        return self.out(self.dec1(torch.cat([F.interpolate(d2, scale_factor=2), e1], 1)))


def dice_ce(logits, target):
    ce = F.cross_entropy(logits, target)
    p = logits.softmax(1)
    t = F.one_hot(target, logits.shape[1]).movedim(-1, 1).float()
    dice = (2 * (p * t).sum((0, 2, 3)) + 1) / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + 1)
    return ce + (1 - dice).mean()


@torch.no_grad()
def mean_iou(model, loader):
    model.eval()
    inter, union = torch.zeros(3), torch.zeros(3)
    for x, y in loader:
        p = model(x).argmax(1)
        for c in range(3):
            inter[c] += ((p == c) & (y == c)).sum()
            union[c] += ((p == c) | (y == c)).sum()
    return (inter / union).mean().item()


train_loader = DataLoader(CellDataset(*draw(256, 0), augment=True), batch_size=16, shuffle=True)
val_loader = DataLoader(CellDataset(*draw(96, 1)), batch_size=32)
net = SmallUNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=20)
for epoch in range(20):
    net.train()
    total = 0.0
    for x, y in train_loader:
        loss = dice_ce(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
    sched.step()
    print(f"epoch {epoch:2d} train {total / 256:.4f} val mIoU {mean_iou(net, val_loader):.4f}")
print("RESULT", 1 - mean_iou(net, val_loader))
