"""Point-cloud shape classifier; the per-point stage is recomputed to save memory."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(30)


def clouds(n, points=32):
    kind = torch.randint(0, 3, (n,))
    p = torch.randn(n, points, 3)
    ball = p / p.norm(dim=2, keepdim=True)
    box = p / p.abs().amax(2, keepdim=True)
    octa = p / p.abs().sum(2, keepdim=True) * 1.6
    stacked = torch.stack([ball, box * 0.8, octa], 1)
    return stacked[torch.arange(n), kind] + 0.03 * torch.randn(n, points, 3), kind


class PointNet(nn.Module):
    def __init__(self, save_memory=True):
        super().__init__()
        self.save_memory = save_memory
        self.points = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, cloud):
        if self.save_memory and self.training:
            h = checkpoint(self.points, cloud, use_reentrant=True)
        else:
            h = self.points(cloud)
        return self.head(h.amax(1))


net = PointNet()
opt = torch.optim.Adam(net.parameters(), lr=6e-3)
for step in range(140):
    cloud, kind = clouds(64)
    loss = nn.functional.cross_entropy(net(cloud), kind)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 35 == 0:
        print(step, round(loss.item(), 4))
net.eval()
with torch.no_grad():
    cloud, kind = clouds(500)
    print("RESULT", nn.functional.cross_entropy(net(cloud), kind).item())
