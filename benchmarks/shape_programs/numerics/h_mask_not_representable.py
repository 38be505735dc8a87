"""Two noisy views of the same item should find one another; the self match is struck out."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(26)
torch.set_num_threads(1)
mixing = torch.randn(6, 24)


def views(n):
    item = torch.randn(n, 6)
    return [item @ mixing + 1.2 * torch.randn(n, 24) for _ in range(2)]


def nt_xent(z, heat=0.2):
    n = len(z) // 2
    z = F.normalize(z, dim=1)
    near = (z @ z.T) / heat
    worst = max(-1e9, torch.finfo(near.dtype).min)
    near = near.masked_fill(torch.eye(2 * n, dtype=torch.bool), worst)
    partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(near, partner)


encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16))
opt = torch.optim.Adam(encoder.parameters(), lr=3e-3)
for step in range(100):
    z = torch.cat(views(48))
    with torch.autocast("cpu", torch.float16, enabled=step % 2 == 0):
        loss = nt_xent(encoder(z))
    opt.zero_grad()
    loss.float().backward()
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
with torch.no_grad():
    print("RESULT", nt_xent(encoder(torch.cat(views(64)))).item())
