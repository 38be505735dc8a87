import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.set_num_threads(1)
torch.manual_seed(110)


def demand(n):
    """Hourly power demand from weekday, hour and weather."""
    hour, day = torch.rand(n) * 24, torch.randint(7, (n,)).float()
    heat = torch.randn(n)
    load = torch.sin(hour / 24 * 6.28) + 0.6 * (day < 5) * torch.cos(hour / 12 * 6.28) + 0.5 * heat ** 2
    x = torch.stack([(hour / 24 * 6.28).sin(), (hour / 24 * 6.28).cos(), (day - 3) / 2, heat], 1)
    return x, load[:, None] + 0.1 * torch.randn(n, 1)


class Forecaster:
    def __init__(self, net, lr):
        self.net = net
        self.smooth = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95))
        self.optimizer = torch.optim.Adam(net.parameters(), lr=lr)

    def learn(self, x, y):
        self.net.train()
        loss = nn.functional.mse_loss(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.smooth.update_parameters(self.net)
        return loss.item()

    @torch.no_grad()
    def error(self, x, y):
        self.net.eval()
        return nn.functional.mse_loss(self.smooth(x), y).item()


x, y = demand(800)
test_x, test_y = demand(500)
model = Forecaster(
    nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Dropout(0.2),
                  nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 1)), lr=5e-3)
for epoch in range(7):
    for index in torch.randperm(len(x)).split(40):
        model.learn(x[index], y[index])
    print(f"epoch {epoch} error {model.error(test_x, test_y):.4f}")
print("RESULT", model.error(test_x, test_y))
