"""Stochastic weight averaging of a batch-normed net; statistics are recomputed for the average."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(2)


def textures(n):
    y = torch.randint(0, 4, (n,))
    x = torch.randn(n, 1, 10, 10)
    k = (y.view(-1, 1, 1, 1) + 1) * 0.6
    return x + 1.5 * torch.cos(k * torch.arange(10.0).view(1, 1, 10, 1)) + 3.0, y


def body():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d((10 // 2, 1)), nn.Flatten(), nn.Linear(80, 4))


data = TensorDataset(*textures(800))
loader = DataLoader(data, batch_size=40, shuffle=True)
net = body()
average = AveragedModel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
swa_rate = SWALR(optimizer, swa_lr=0.03, anneal_epochs=1)

for epoch in range(6):
    net.train()
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch >= 3:
        average.update_parameters(net)
        swa_rate.step()
    print("epoch", epoch, loss.item())

update_bn(loader, average)
average.eval()
x, y = textures(300)
with torch.no_grad():
    print("RESULT", F.cross_entropy(average(x), y).item())
