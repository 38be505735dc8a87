import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(53)


def problem(n):
    x = torch.randn(n, 16)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].abs(), x[:, 3:6].sum(1)], 1)
    return x, y


x, y = problem(3000)
xv, yv = problem(800)
dtype = torch.bfloat16
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3)).to(dtype)
opt = torch.optim.Adam(model.parameters(), lr=2e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1500)


def forward(inp):
    return model(inp.to(dtype)).float()


for step in range(1500):
    i = torch.randint(0, 3000, (64,))
    loss = nn.functional.mse_loss(forward(x[i]), y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 300 == 0:
        print(step, f"{loss.item():.4f}")
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(forward(xv), yv).item())
