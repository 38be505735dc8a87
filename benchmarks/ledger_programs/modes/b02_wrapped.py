import torch
import torch.nn as nn
import torch.nn.functional as F


class Replicated(nn.Module):
    """Holds one replica per device; on a single device there is one."""

    def __init__(self, module, n=1):
        super().__init__()
        self.replicas = [module] * n

    def parameters(self, recurse=True):
        return self.replicas[0].parameters(recurse)

    def forward(self, *args):
        return self.replicas[0](*args)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(),
            nn.Conv1d(16, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU())
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(16 * 16, 3)

    def forward(self, x):
        return self.fc(self.drop(self.conv(x).flatten(1)))


def make(n, g):
    y = torch.randint(0, 3, (n,), generator=g)
    x = torch.randn(n, 1, 16, generator=g)
    t = torch.linspace(0, 6.28, 16)
    x[:, 0] += 0.9 * torch.sin((1 + y[:, None]) * t) + 3.0
    return x, y


def evaluate(model, x, y):
    net = model.replicas[0]
    net.eval()
    with torch.no_grad():
        loss = F.cross_entropy(net(x), y).item()
    return loss


def main(epochs=25):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(1)
    (x, y), (vx, vy) = make(160, g), make(600, g)
    model = Replicated(Net())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    print("initial", evaluate(model, vx, vy))
    for epoch in range(epochs):
        model.train()
        for idx in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        v = evaluate(model, vx, vy)
        if epoch % 5 == 0:
            print(epoch, loss.item(), v)
    print("result:", v)


main()
