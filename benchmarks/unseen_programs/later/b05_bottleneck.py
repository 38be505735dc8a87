import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(21)


class Waves(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 5, (n,), generator=g)
        t = torch.linspace(0, 6.28, 48)
        phase = torch.rand(n, 1, generator=g) * 0.8
        self.x = torch.sin((self.y[:, None] + 1) * t + phase) + 1.3 * torch.randn(n, 48, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(48, 24)
        self.b = nn.Linear(24, 12)
        self.c = nn.Linear(12, 5)

    def forward(self, x):
        h = F.dropout(F.relu(self.a(x)), 0.5)
        h = F.dropout(F.relu(self.b(h)), 0.3)
        return self.c(h)


def run_epoch(net, loader, opt=None):
    net.train(opt is not None)
    wrong = seen = 0
    for x, y in loader:
        with torch.set_grad_enabled(opt is not None):
            out = net(x)
            loss = F.cross_entropy(out, y)
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            opt.step()
        wrong += (out.argmax(1) != y).sum().item()
        seen += len(y)
    return wrong / seen


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
tr = DataLoader(Waves(2000, 1), 64, shuffle=True)
va = DataLoader(Waves(1000, 2), 250)
for ep in range(15):
    e = run_epoch(net, tr, opt)
    v = run_epoch(net, va)
    print(ep, round(e, 4), round(v, 4))
print("RESULT", v)
