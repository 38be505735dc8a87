import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(160)


class ScaledNorm(nn.Module):
    """Normalises features by their running mean and variance, with a shared gain."""

    def __init__(self, width, momentum=0.99, eps=1e-3):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.lift = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.momentum, self.eps = momentum, eps

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.variance, self.gain, self.lift,
                            self.training, self.momentum, self.eps)


def tracks(n):
    """Particle hits in 6 detector planes of which the first ones tell the charge."""
    charge = torch.randint(2, (n,)) * 2.0 - 1
    speed = torch.distributions.Gamma(1.5, 1.0).sample((n,))
    plane = torch.arange(6.0)
    hits = charge[:, None] * speed[:, None] * (plane / 4) ** 2 + torch.randn(n, 1) * plane
    return hits + 0.3 * torch.randn(n, 6), charge * speed


def network(width=48):
    return nn.Sequential(ScaledNorm(6), nn.Linear(6, width), ScaledNorm(width), nn.ReLU(),
                         nn.Linear(width, width), ScaledNorm(width), nn.ReLU(),
                         nn.Linear(width, 1), nn.Flatten(0))


x, y = tracks(746)
test_x, test_y = tracks(500)
net = network()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(4):
    net.train()
    for index in torch.randperm(len(x)).split(24):
        loss = F.mse_loss(net(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = F.mse_loss(net(test_x), test_y).item()
    print(f"epoch {epoch} error {error:.4f}")
print("RESULT", error)
