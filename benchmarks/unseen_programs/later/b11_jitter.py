import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(17)


def shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    img = torch.zeros(n, 1, 12, 12)
    lab = torch.randint(0, 4, (n,), generator=g)
    for i, k in enumerate(lab.tolist()):
        r, c = torch.randint(1, 7, (2,), generator=g).tolist()
        if k == 0:
            img[i, 0, r, c:c + 5] = 1
        elif k == 1:
            img[i, 0, r:r + 5, c] = 1
        elif k == 2:
            img[i, 0, range(r, r + 5), range(c, c + 5)] = 1
        else:
            img[i, 0, r:r + 3, c:c + 3] = 0.6
    return img, lab


class ShapeSet(Dataset):
    def __init__(self, n, seed, augment):
        self.img, self.lab = shapes(n, seed)
        self.augment = augment

    def __len__(self):
        return len(self.lab)

    def __getitem__(self, i):
        x = self.img[i]
        if self.augment:
            x += 0.25 * torch.randn(x.shape)
            x *= 0.9 + 0.2 * torch.rand(1)
        return x, self.lab[i]


net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(),
                    nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(48, 4))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
train = DataLoader(ShapeSet(800, 1, True), 32, shuffle=True)
val = DataLoader(ShapeSet(400, 2, False), 200)
ce = nn.CrossEntropyLoss()
for epoch in range(24):
    net.train()
    for x, y in train:
        opt.zero_grad()
        ce(net(x), y).backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        v = sum(ce(net(x), y).item() for x, y in val) / len(val)
    print(epoch, f"{v:.4f}")
print("RESULT", v)
