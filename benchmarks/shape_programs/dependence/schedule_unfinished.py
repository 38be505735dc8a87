"""Adapt the weights of a frozen random reservoir's readout and gate, with warm-up and cosine."""
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(3)


def signals(n):
    start = torch.rand(n, 2, generator=gen) * 2 - 1
    x, v, path = start[:, 0], start[:, 1], []
    for _ in range(16):
        v = v - 0.3 * torch.sin(2 * x)
        x = x + 0.3 * v
        path.append(x)
    path = torch.stack(path, 1)
    return path[:, :12, None] + 0.05 * torch.randn(n, 12, 1, generator=gen), path[:, -1:]


class Reservoir(nn.Module):
    def __init__(self, size=40):
        super().__init__()
        self.core = nn.RNN(1, size, batch_first=True).requires_grad_(False)
        self.gate = nn.Linear(size, size)
        self.read = nn.Linear(size, 1)

    def forward(self, x):
        h = self.core(x)[0][:, -1]
        return self.read(h * torch.sigmoid(self.gate(h)))


def plan(opt, updates):
    warm = updates // 5
    return SequentialLR(opt, [LinearLR(opt, 0.01, 1.0, warm), CosineAnnealingLR(opt, updates - warm)], [warm])


EPOCHS = 8
train = TensorDataset(*signals(512))
loader = DataLoader(train, batch_size=32, shuffle=True)
model = Reservoir()
opt = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=2e-2)
sched = plan(opt, EPOCHS * len(train))
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    print(epoch, loss.item())

model.eval()
x, y = signals(500)
with torch.no_grad():
    print("RESULT", float(nn.functional.mse_loss(model(x), y)))
