"""Traffic between city zones: graph convolution over the matrix of daily trips, half precision."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(109)

ZONES, FEATS, HIDDEN = 80, 6, 32

place = torch.rand(ZONES, 2)
distance = torch.cdist(place, place)
population = 100 + 900 * torch.rand(ZONES)
trips = (population[:, None] * population[None] ** 0.5 * torch.exp(-6 * distance)).round()
share = trips / trips.sum(1, keepdim=True)


def mornings(n):
    x = torch.randn(n, ZONES, FEATS)
    drive = torch.tanh(x[..., 0] + 0.5 * x[..., 1] * x[..., 2])
    y = 1.5 * drive @ share.t() * 3 + 0.5 * x[..., 3]
    return x, y + 0.05 * torch.randn_like(y)


class TripConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own = nn.Linear(i, o)
        self.flow = nn.Linear(i, o)

    def forward(self, x, adj):
        return self.own(x) + torch.matmul(adj, self.flow(x))


class TripNet(nn.Module):
    def __init__(self, adj):
        super().__init__()
        self.register_buffer("adj", adj)
        self.embed = nn.Sequential(nn.Linear(FEATS, HIDDEN), nn.ReLU())
        self.conv1 = TripConv(HIDDEN, HIDDEN)
        self.conv2 = TripConv(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, x):
        h = self.embed(x)
        h = F.relu(self.conv1(h, self.adj))
        h = F.relu(self.conv2(h, self.adj))
        return self.out(h).squeeze(-1)


x, y = mornings(320)
model = TripNet(trips)
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
for epoch in range(6):
    for idx in torch.randperm(len(x)).split(16):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x[idx])
        loss = F.mse_loss(pred.float(), y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(f"epoch {epoch} mse {loss.item():.4f}")

x, y = mornings(60)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    print("RESULT", F.mse_loss(model(x).float(), y).item())
