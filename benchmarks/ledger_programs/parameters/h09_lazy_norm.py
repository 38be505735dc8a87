import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

torch.manual_seed(9)
torch.set_num_threads(1)


def images(n):
    y = torch.randint(0, 3, (n,))
    x = 0.5 * torch.randn(n, 1, 12, 12)
    for i, k in enumerate(y.tolist()):
        r = int(torch.randint(2, 10, (1,)))
        if k == 0:
            x[i, 0, r] += 1.5
        elif k == 1:
            x[i, 0, :, r] += 1.5
        else:
            x[i, 0].diagonal().add_(1.5)
    return x, y


net = nn.Sequential(
    nn.LazyConv2d(8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.LazyConv2d(16, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(2),
    nn.Flatten(), nn.LazyLinear(32), nn.ReLU(), nn.LazyLinear(3),
)
with torch.no_grad():
    net(torch.zeros(1, 1, 12, 12))
net[0] = weight_norm(net[0])
net[7] = spectral_norm(net[7])
opt = torch.optim.Adam(net.parameters(), lr=5e-3)

for step in range(150):
    x, y = images(32)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, round(loss.item(), 4))
net.eval()
with torch.no_grad():
    x, y = images(400)
    print("result:", F.cross_entropy(net(x), y).item())
