"""Spectrogram classifier that is also scored as it would run on a low-precision device."""
from contextlib import contextmanager
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(37)


def spectra(n):
    kind = torch.randint(0, 5, (n,))
    s = 0.7 * torch.randn(n, 1, 16, 16)
    line = torch.arange(16)
    for i in range(n):
        s[i, 0, (line * (int(kind[i]) + 1) // 3) % 16, line] += 1.2
    return s, kind


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, s):
        return self.head(self.filters(s))


@contextmanager
def device_precision(net, grid):
    layers = [m for m in net.modules() if hasattr(m, "weight")]
    full = {m: m.weight.detach().clone() for m in layers if isinstance(m, nn.Linear)}
    with torch.no_grad():
        for m in layers:
            m.weight.copy_((m.weight / grid).round() * grid)
    yield net
    with torch.no_grad():
        for m, weight in full.items():
            m.weight.copy_(weight)


train_s, train_k = spectra(500)
val_s, val_k = spectra(200)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.8)
for step in range(100):
    rows = torch.randint(0, 500, (48,))
    loss = nn.functional.cross_entropy(net(train_s[rows]), train_k[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 4:
        with torch.no_grad(), device_precision(net, 0.25) as small:
            low = nn.functional.cross_entropy(small(val_s), val_k).item()
        if step % 20 == 19:
            print(step + 1, "train", round(loss.item(), 3), "device", round(low, 3))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(val_s), val_k).item())
