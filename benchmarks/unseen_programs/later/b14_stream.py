import torch
from torch import nn

torch.set_num_threads(1)
CFG = dict(seed=7, batch=32, steps=600, lr=2e-3)
torch.manual_seed(CFG["seed"])
coef = torch.randn(30) / 30 ** 0.5


def make(n):
    x = torch.randn(n, 30)
    return x, torch.sin(2 * (x @ coef)) + 0.5 * x[:, 0]


pool_x, pool_y = make(5000)
val_x, val_y = make(1000)


def next_batch(size):
    rng = torch.Generator().manual_seed(CFG["seed"])
    pick = torch.randint(0, len(pool_x), (size,), generator=rng)
    return pool_x[pick], pool_y[pick]


net = nn.Sequential(nn.Linear(30, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=CFG["lr"])
for step in range(1, CFG["steps"] + 1):
    x, y = next_batch(CFG["batch"])
    loss = (net(x)[:, 0] - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.5f}")
net.eval()
with torch.inference_mode():
    print("RESULT", (net(val_x)[:, 0] - val_y).square().mean().item())
