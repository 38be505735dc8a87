import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(19)


def block(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 5, padding=2, bias=False), nn.BatchNorm1d(o, momentum=0.001), nn.ReLU(), nn.MaxPool1d(2))


class Sensor(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(block(2, 16), block(16, 32))
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.features(x).mean(-1))


def signals(n):
    y = torch.randint(0, 4, (n,))
    t = torch.arange(40.0)
    f = 0.25 + 0.2 * y[:, None].float()
    a = torch.sin(f * t + 6.28 * torch.rand(n, 1))
    b = torch.cos(f * t * 0.5 + 6.28 * torch.rand(n, 1))
    return torch.stack([a, b], 1) * 4 + 3 + 1.5 * torch.randn(n, 2, 40), y


x, y = signals(1500)
xv, yv = signals(500)
model = Sensor(4)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    model.train()
    run = 0.0
    for idx in torch.randperm(len(x)).split(64):
        loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        run += loss.item() * len(idx)
    model.eval()
    with torch.no_grad():
        v = nn.functional.cross_entropy(model(xv), yv).item()
    print(f"{epoch} train {run / len(x):.4f} val {v:.4f}")
print("RESULT", v)
