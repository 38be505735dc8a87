import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(16)


def scores(n):
    x = torch.randn(n, 10)
    return x, torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * torch.randn(n, 1)


class Feeder:
    """Hands out batches by number of steps; begins the loader anew when it has ended."""

    def __init__(self, loader):
        self.loader, self.source = loader, iter(())

    def __call__(self):
        batch = next(self.source, None)
        if batch is None:
            self.source = iter(self.loader)
            batch = next(self.source)
        return batch


feed = Feeder(DataLoader(TensorDataset(*scores(480)), batch_size=40, shuffle=True))
held_out = scores(400)
net = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=100)
for step in range(100):
    x, y = feed()
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 25 == 24:
        with torch.no_grad():
            print(f"step {step} held out {nn.functional.mse_loss(net(held_out[0]), held_out[1]):.4f}")
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(held_out[0]), held_out[1]).item())
