import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
torch.set_num_threads(1)


class ConvNet(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.GroupNorm(2, 8), nn.ReLU())
        self.stage = nn.Sequential(nn.Conv1d(8, 16, 5, stride=2, padding=2), nn.GroupNorm(4, 16), nn.ReLU(),
                                   nn.Conv1d(16, 16, 5, stride=2, padding=2), nn.GroupNorm(4, 16), nn.ReLU())
        self.head = nn.Linear(16, n_classes)

    def forward(self, x):
        return self.head(self.stage(self.stem(x)).mean(-1))


def count(params):
    return sum(p.numel() for p in params)


def build_optimizer(model, lr):
    backbone = (p for n, p in model.named_parameters() if not n.startswith("head"))
    head = (p for n, p in model.named_parameters() if n.startswith("head"))
    total = count(model.parameters())
    print(f"backbone params: {count(backbone)} / {total}")
    return torch.optim.AdamW([
        {"params": backbone, "lr": lr},
        {"params": head, "lr": lr * 2, "weight_decay": 0.0},
    ])


def signals(n):
    y = torch.randint(0, 4, (n,))
    t = torch.linspace(0, 1, 32)
    phase = torch.rand(n, 1) * 6.28
    x = torch.sin(6.28 * (3 + y[:, None].float()) * t + phase) + 0.6 * torch.randn(n, 32)
    return x[:, None], y


model = ConvNet()
optimizer = build_optimizer(model, 3e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=250)
for it in range(250):
    x, y = signals(64)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if it % 50 == 0:
        print(it, scheduler.get_last_lr(), round(loss.item(), 3))

model.eval()
with torch.no_grad():
    x, y = signals(1000)
    print("result:", F.cross_entropy(model(x), y).item())
