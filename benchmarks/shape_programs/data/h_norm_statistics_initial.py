import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(171)


def wines(n):
    x = torch.randn(n, 9) * 2 + 4
    return x, (0.4 * x[:, 0] - 0.3 * x[:, 1] + torch.cos(x[:, 2] / 2))[:, None] + 0.1 * torch.randn(n, 1)


train, (test_x, test_y) = wines(960), wines(400)
loader = DataLoader(TensorDataset(*train), batch_size=48, shuffle=True)
net = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
mean = AveragedModel(net)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for epoch in range(7):
    net.train()
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch >= 4:
            mean.update_parameters(net)
    print(f"epoch {epoch} loss {loss.item():.4f}")

# the mean of the weights has never seen a batch: its norms get their statistics here
update_bn(loader, mean)
mean.eval()
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(mean(test_x), test_y).item())
