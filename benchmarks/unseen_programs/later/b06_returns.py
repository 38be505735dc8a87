import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)


def series(n):
    x = torch.randn(n, 10)
    y = x[:, :3].sum(1) + 0.7 * x[:, 3] * x[:, 4] - torch.relu(x[:, 5])
    return x, y


def mlp(sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers)


xtr, ytr = series(3000)
mean, std = ytr.mean(), ytr.std()
ztr = (ytr - mean) / std
xva, yva = series(800)

model = mlp([10, 64, 64, 1])
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-3, total_steps=600)

for step in range(600):
    idx = torch.randint(0, 3000, (100,))
    pred = model(xtr[idx]).squeeze(-1)
    loss = ((pred - ztr[idx]) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 100 == 99:
        print(step + 1, f"{loss.item():.4f}")

with torch.no_grad():
    pred = model(xva).squeeze(-1) * std + mean
print("RESULT", ((pred - yva) ** 2).mean().item())
