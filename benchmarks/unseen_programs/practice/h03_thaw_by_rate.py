"""Fine-tune a pretrained network for steel defects, thawing its layers through their rates."""
import torch
torch.set_num_threads(1)
torch.manual_seed(321)
import math
from torch import nn
import torch.nn.functional as F

SIZE, KINDS, ACCUMULATE = 14, 6, 2


def plates(kind, shift):
    n = len(kind)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    angle = kind.float() * math.pi / KINDS + shift
    along = torch.cos(angle)[:, None, None] * xx + torch.sin(angle)[:, None, None] * yy
    img = torch.sin(along * 1.3 + 6.28 * torch.rand(n, 1, 1))
    return (img + 0.8 * torch.randn(n, SIZE, SIZE))[:, None]


class DefectNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
        self.high = nn.Sequential(nn.Conv2d(16, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                                  nn.Flatten())
        self.head = nn.Linear(24, KINDS)

    def forward(self, x):
        return self.head(self.high(self.low(x)))


def draw(n, shift):
    kind = torch.randint(KINDS, (n,))
    return plates(kind, shift), kind


model = DefectNet()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(150):
    x, y = draw(64, 0.0)
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"pretrained {loss.item():.4f}")

model.head = nn.Linear(24, KINDS)
x_train, y_train = draw(600, 0.25)
x_val, y_val = draw(800, 0.25)
total = 400                                   # micro-batches, two of them to a step
groups = [
    {"params": model.head.parameters(), "share": 1.0, "thaw": 0},
    {"params": model.high.parameters(), "share": 0.2, "thaw": 100},
    {"params": model.low.parameters(), "share": 0.05, "thaw": 200},
]
opt = torch.optim.AdamW(groups, lr=1e-2, weight_decay=1e-3)


def set_rates(micro):
    base = 1e-2 * 0.5 * (1 + math.cos(math.pi * micro / total))
    for group in opt.param_groups:
        group["lr"] = base * group["share"] if micro >= group["thaw"] else 0.0


opt.zero_grad()
for micro in range(total):
    set_rates(micro)
    rows = torch.randint(len(x_train), (24,))
    loss = F.cross_entropy(model(x_train[rows]), y_train[rows])
    (loss / ACCUMULATE).backward()
    if micro % ACCUMULATE == ACCUMULATE - 1:
        opt.step()
        opt.zero_grad()
    if micro % 100 == 99:
        with torch.no_grad():
            val = F.cross_entropy(model(x_val), y_val).item()
        rates = " ".join(f"{g['lr']:.5f}" for g in opt.param_groups)
        print(f"micro-batch {micro + 1} val {val:.4f} rates {rates}")

with torch.no_grad():
    print("RESULT", F.cross_entropy(model(x_val), y_val).item())
