import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(111)


def tides(n):
    t = torch.rand(n, 1) * 6 - 3
    return t, torch.sin(2 * t) + 0.3 * t + 0.1 * torch.randn(n, 1)


class Tide(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.BatchNorm1d(1)
        self.body = nn.Sequential(nn.Linear(1, 96), nn.Tanh(), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.05), nn.Linear(96, 1))

    def forward(self, t):
        return self.body(self.scale(t))


def only_dropout_on(net):
    """Monte Carlo dropout: everything as in an evaluation, but the dropout draws."""
    net.eval()
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.train()


@torch.no_grad()
def spread(net, t, times=40):
    only_dropout_on(net)
    guesses = torch.stack([net(t) for _ in range(times)])
    return guesses.mean(0), guesses.std(0)


t, level = tides(800)
test_t, test_level = tides(300)
net = Tide()
optimizer = torch.optim.Adam(net.parameters(), lr=1.2e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
for epoch in range(6):
    net.train()
    for index in torch.randperm(len(t)).split(40):
        loss = nn.functional.mse_loss(net(t[index]), level[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    mean, doubt = spread(net, test_t)
    error = nn.functional.mse_loss(mean, test_level).item()
    print(f"epoch {epoch} error {error:.4f} doubt {doubt.mean():.3f}")
print("RESULT", error)
