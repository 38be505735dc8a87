"""Cross-validation: a new network and a new optimizer for every fold."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(28)
x = torch.randn(500, 8)
y = x[:, 0] * 2 - x[:, 1].relu() + 0.2 * torch.randn(500)


def run_fold(train, test):
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(28):
        rows = train[torch.randint(0, len(train), (64,))]
        loss = nn.functional.mse_loss(net(x[rows]).squeeze(1), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[test]).squeeze(1), y[test]).item()


order = torch.randperm(500).chunk(5)
scores = [run_fold(torch.cat([o for j, o in enumerate(order) if j != i]), order[i]) for i in range(5)]
print([round(s, 3) for s in scores])
print("RESULT", sum(scores) / 5)
