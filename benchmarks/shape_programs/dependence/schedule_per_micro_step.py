"""Multi-crop training: the gradient of several crops is gathered before each update."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import ExponentialLR

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(1)
CROPS = 6


def scenes(n):
    y = torch.randint(0, 4, (n,), generator=gen)
    img = 0.5 * torch.randn(n, 1, 20, 20, generator=gen)
    wave = torch.sin(torch.arange(20) * 1.2)
    for i, k in enumerate(y.tolist()):
        pattern = (wave[:, None] if k < 2 else wave[None]) * (1.0 if k % 2 else 0.5)
        img[i, 0] += pattern.expand(20, 20)
    return img, y


def crops(img):
    for _ in range(CROPS):
        a, b = torch.randint(0, 9, (2,), generator=gen).tolist()
        yield img[..., a:a + 12, b:b + 12]


class Accumulator:
    def __init__(self, model, opt, sched):
        self.model, self.opt, self.sched = model, opt, sched

    def learn(self, img, y):
        total = 0.0
        self.opt.zero_grad()
        for part in crops(img):
            loss = F.cross_entropy(self.model(part), y) / CROPS
            loss.backward()
            total += loss.item()
            self.on_part_done()
        self.opt.step()
        self.on_update_done()
        return total

    def on_part_done(self):
        self.sched.step()

    def on_update_done(self):
        pass


model = nn.Sequential(nn.Conv2d(1, 12, 5, stride=2), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
acc = Accumulator(model, opt, ExponentialLR(opt, gamma=0.97))
for update in range(70):
    total = acc.learn(*scenes(16))
    if update % 15 == 0:
        print(update, round(total, 4))

model.eval()
img, y = scenes(400)
with torch.no_grad():
    print("RESULT", float(F.cross_entropy(model(img[..., 4:16, 4:16]), y)))
