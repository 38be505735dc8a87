import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(71)
SIDE = 12
line = torch.linspace(-1, 1, SIDE)
GRID = torch.stack(torch.meshgrid(line, line, indexing="ij"))


def dots(n):
    place = torch.rand(n, 2) * 1.6 - 0.8
    away = (GRID[None] - place[:, :, None, None]).square().sum(1, keepdim=True)
    return torch.exp(-away / 0.05) + 0.1 * torch.randn(n, 1, SIDE, SIDE), place


class Locator(nn.Module):
    """Each image is joined by the same two maps of coordinates (CoordConv)."""

    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.say = nn.Linear(16, 2)

    def forward(self, image, grid):
        return self.say(self.see(torch.cat([image, grid], 1)).mean((2, 3)))


def with_grid(rows):
    image, place = zip(*rows)
    return torch.stack(image), GRID.expand(len(image), -1, -1, -1), torch.stack(place)


train, test = dots(512), dots(200)
net = Locator()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(*train), 32, shuffle=True, collate_fn=with_grid)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * len(loader))
for epoch in range(8):
    for image, grid, place in loader:
        loss = (net(image, grid) - place).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
with torch.no_grad():
    guess = net(test[0], GRID.expand(200, -1, -1, -1))
print("RESULT", (guess - test[1]).square().mean().item())
