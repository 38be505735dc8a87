import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(161)


class SlowNorm(nn.Module):
    """A norm whose statistics keep 0.95 of the old value at each step."""

    def __init__(self, width, keep=0.95):
        super().__init__()
        self.keep = keep
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x):
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.mean.mul_(self.keep).add_(mean, alpha=1 - self.keep)
                self.variance.mul_(self.keep).add_(variance, alpha=1 - self.keep)
        return (x - mean) / (variance + 1e-5).sqrt() * self.gain


def soil(n):
    x = torch.randn(n, 5) * torch.tensor([1.0, 3.0, 0.5, 2.0, 1.0]) + 2
    return x, (0.5 * x[:, 0] + torch.sin(x[:, 1] / 2) + x[:, 2] * 0.8 - 2.6)[:, None] + 0.1 * torch.randn(n, 1)


x, y = soil(1200)
test_x, test_y = soil(500)
net = nn.Sequential(SlowNorm(5), nn.Linear(5, 64), nn.Tanh(), SlowNorm(64), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(5):
    net.train()
    for index in torch.randperm(len(x)).split(48):
        loss = F.mse_loss(net(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        error = F.mse_loss(net(test_x), test_y).item()
    print(f"epoch {epoch} error {error:.4f}")
print("RESULT", error)
