# Point cloud classifier; blocks are recomputed in the backward pass to save memory.
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class SetBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.point = nn.Linear(dim, dim)
        self.context = nn.Linear(dim, dim)

    def forward(self, state):
        h, mask = state["h"], state["mask"]
        n = self.norm(h)
        pooled = (n * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return h + torch.relu(self.point(n) + self.context(pooled))


class PointNet(nn.Module):
    def __init__(self, dim=32, depth=3, classes=4):
        super().__init__()
        self.embed = nn.Linear(3, dim)
        self.blocks = nn.ModuleList(SetBlock(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, points, mask):
        state = {"h": self.embed(points), "mask": mask}
        for block in self.blocks:
            state["h"] = checkpoint(block, state, use_reentrant=True)
        h = state["h"].masked_fill(mask == 0, -1e4)
        return self.head(h.amax(1))


def clouds(n, gen):
    label = torch.randint(0, 4, (n,), generator=gen)
    p = torch.randn(n, 24, 3, generator=gen)
    p = p / p.norm(dim=2, keepdim=True)
    flat = torch.stack([torch.ones(n), (label % 2 == 0).float() * 0.7 + 0.3, (label // 2 == 0).float() * 0.7 + 0.3], 1)
    mask = (torch.rand(n, 24, 1, generator=gen) < 0.8).float()
    mask[:, 0] = 1
    return p * flat[:, None] + 0.05 * torch.randn(n, 24, 3, generator=gen), mask, label


gen = torch.Generator().manual_seed(1)
net = PointNet()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(80):
    points, mask, label = clouds(48, gen)
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(points, mask), label)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
points, mask, label = clouds(400, gen)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(points, mask), label).item())
