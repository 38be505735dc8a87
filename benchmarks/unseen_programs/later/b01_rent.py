import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)


def make_data(n):
    x = torch.rand(n, 6) * 2 - 1
    y = 2.0 * x[:, 0] - 1.5 * x[:, 1] + torch.sin(3 * x[:, 2]) + x[:, 3] * x[:, 4]
    return x, y + 0.05 * torch.randn(n)


class Regressor(nn.Module):
    def __init__(self, d, h=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, 1))

    def forward(self, x):
        return self.net(x)


train = DataLoader(TensorDataset(*make_data(2000)), batch_size=50, shuffle=True)
xv, yv = make_data(500)
model = Regressor(6)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
huber = nn.SmoothL1Loss(beta=0.5)

for epoch in range(12):
    model.train()
    total = 0.0
    for x, y in train:
        opt.zero_grad()
        out = model(x)
        loss = huber(out, y)
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"epoch {epoch} train {total / len(train):.4f}")

model.eval()
with torch.no_grad():
    mae = (model(xv).flatten() - yv).abs().mean()
print("RESULT", float(mae))
