import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
torch.set_num_threads(1)

BATCH = 32
ACCUM = 4

t = torch.linspace(0, 1, 320)
signal = torch.sin(9 * t) + 0.5 * t ** 2 - 1.6 * (t > 0.85).float() * (t - 0.85) * 5
feats = torch.stack([(k * 3.0 * t).sin() for k in range(1, 6)] + [(k * 3.0 * t).cos() for k in range(1, 6)], 1)
loader = DataLoader(TensorDataset(feats, signal[:, None] + 0.02 * torch.randn(320, 1)), batch_size=BATCH)


class Regressor(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.body(x))


def train_one_epoch(model, loader, optimizer, loss_fn):
    model.train()
    optimizer.zero_grad()
    seen = 0.0
    for step, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / ACCUM
        loss.backward()
        seen += loss.item() * ACCUM
        if (step + 1) % ACCUM == 0:
            optimizer.step()
            optimizer.zero_grad()
    return seen / len(loader)


model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80)
for epoch in range(80):
    tr = train_one_epoch(model, loader, optimizer, nn.functional.mse_loss)
    sched.step()
    if epoch % 20 == 0:
        print(epoch, round(tr, 4))

model.eval()
with torch.inference_mode():
    print(f"result: {nn.functional.mse_loss(model(feats), signal[:, None]).item():.5f}")
