"""Fine-tuning with BatchNorm frozen as in detection code: eval mode, affine fixed, train() overridden."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(2, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(16, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.AdaptiveAvgPool1d(4))
        self.fc = nn.Linear(96, classes)
        self.freeze_bn = False

    def train(self, mode=True):
        super().train(mode)
        if self.freeze_bn:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm1d):
                    m.eval()
                    m.requires_grad_(False)
        return self

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


def signals(n, classes, offset):
    y = torch.randint(classes, (n,))
    t = torch.linspace(0, 1, 32)
    f = (2 + 1.5 * y + offset).view(-1, 1) * 6.28
    ph = torch.rand(n, 1) * 6.28
    x = torch.stack([torch.sin(f * t + ph), torch.cos(0.5 * f * t + ph)], 1)
    return x + 0.5 * torch.randn_like(x), y


def loop(net, data, epochs, lr, bs):
    x, y = data
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    for _ in range(epochs):
        net.train()
        for idx in torch.randperm(len(x)).split(bs):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
    return loss.item()


net = Net(5)
print("pretrain", loop(net, signals(600, 5, 0.0), 6, 0.05, 32))
net.fc = nn.Linear(96, 3)
net.freeze_bn = True
net.train()
print("finetune", loop(net, signals(200, 3, 0.7), 8, 0.01, 4))
net.eval()
vx, vy = signals(1000, 3, 0.7)
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(vx), vy).item())
