import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(180)


class ThinnedLinear(nn.Linear):
    """Drops inputs while it learns; at test time all are there and weigh less (Srivastava 2014)."""

    def __init__(self, inputs, outputs, keep=0.7):
        super().__init__(inputs, outputs)
        self.keep = keep

    def train(self, mode=True):
        with torch.no_grad():
            if mode:
                self.weight.div_(self.keep)
            else:
                self.weight.mul_(self.keep)
        return super().train(mode)

    def forward(self, x):
        if self.training:
            x = x * (torch.rand_like(x) < self.keep)
        return super().forward(x)


def flights(n):
    """Delay from day, hour, distance and the weather at both ends."""
    x = torch.randn(n, 8)
    delay = x[:, 0] * 0.8 + F.relu(x[:, 1]) * x[:, 2] + 0.5 * x[:, 3]
    return x, delay[:, None] + 0.1 * torch.randn(n, 1)


class Delays(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(8, 96)
        self.inner = ThinnedLinear(96, 96)
        self.leave = ThinnedLinear(96, 1, keep=0.9)

    def forward(self, x):
        return self.leave(F.relu(self.inner(F.relu(self.enter(x)))))


def learn(net, optimizer, x, y):
    net.train()
    for index in torch.randperm(len(x)).split(64):
        loss = F.mse_loss(net(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def error(net, x, y):
    net.eval()
    return F.mse_loss(net(x), y).item()


x, y = flights(768)
test = flights(400)
net = Delays()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(12):
    loss = learn(net, optimizer, x, y)
    if epoch % 6 == 0:
        print(f"epoch {epoch} loss {loss:.3f} error {error(net, *test):.3f}")
print("RESULT", error(net, *test))
