"""Two attention flavours over point sets of varying size."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
MAXN, D = 14, 32


def clouds(n, gen):
    size = torch.randint(4, MAXN + 1, (n,), generator=gen)
    pts = torch.randn(n, MAXN, 3, generator=gen)
    radius = torch.rand(n, 1, 1, generator=gen) * 2 + 0.5
    pts = pts / pts.norm(dim=-1, keepdim=True) * radius
    inside = torch.arange(MAXN)[None] < size[:, None]
    pts = pts * inside[..., None]
    return pts, inside, radius.flatten()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, D), nn.ReLU(), nn.Linear(D, D))
        self.mha = nn.MultiheadAttention(D, 4, batch_first=True)
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, 1)

    def forward(self, pts, inside):
        h = self.embed(pts)
        h = h + self.mha(h, h, h, key_padding_mask=~inside, need_weights=False)[0]
        q, k, v = self.qkv(h).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v, attn_mask=inside[:, None, :])
        w = inside[..., None].float()
        return self.out((h * w).sum(1) / w.sum(1)).squeeze(-1)


gen = torch.Generator().manual_seed(9)
model = Net()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(120):
    pts, inside, r = clouds(64, gen)
    loss = F.mse_loss(model(pts, inside), r)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())
model.eval()
pts, inside, r = clouds(256, gen)
with torch.no_grad():
    print("RESULT", float(F.mse_loss(model(pts, inside), r)))
