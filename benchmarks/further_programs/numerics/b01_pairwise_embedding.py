"""Metric learning with a contrastive loss, fp16 autocast and a gradient scaler."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Embedder(nn.Module):
    def __init__(self, d_in=16, d_out=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d_in, 64), nn.ReLU(), nn.Linear(64, d_out))

    def forward(self, x):
        return self.net(x)


def contrastive(za, zb, same, margin=2.0):
    dist = torch.sqrt(((za - zb) ** 2).sum(-1) + 1e-12)
    pos = same * dist ** 2
    neg = (1 - same) * torch.relu(margin - dist) ** 2
    return (pos + neg).mean()


centers = torch.randn(10, 16)


def sample(n):
    y = torch.randint(10, (n,))
    x = centers[y] + 0.5 * torch.randn(n, 16)
    return x, y


def pairs(pool_x, pool_y, n):
    # drawn with replacement from the pool
    i, j = torch.randint(len(pool_x), (2, n))
    return pool_x[i], pool_x[j], (pool_y[i] == pool_y[j]).float()


pool_x, pool_y = sample(150)
model = Embedder()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for step in range(400):
    xa, xb, same = pairs(pool_x, pool_y, 256)
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = contrastive(model(xa), model(xb), same)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 100 == 0:
        print(f"{step} loss {loss.item():.4f} scale {scaler.get_scale()}")

model.eval()
vx, vy = sample(400)
with torch.no_grad():
    z = model(vx)
    d = torch.cdist(z, z)
    same = (vy[:, None] == vy[None]).float()
    off = 1 - torch.eye(len(vx))
    value = (off * (same * d ** 2 + (1 - same) * torch.relu(2.0 - d) ** 2)).sum() / off.sum()
print("RESULT", value.item())
