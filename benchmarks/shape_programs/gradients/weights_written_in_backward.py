# Fine-tuning with slower lower layers: updates of the pretrained part are scaled down per depth.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Slower:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, param):
        param.data = param.data * self.factor


class Net(nn.Module):
    def __init__(self, width=48, depth=3):
        super().__init__()
        sizes = [10] + [width] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)[:, 0]


def signal(n, gen, tilt):
    x = torch.randn(n, 10, generator=gen)
    return x, torch.sin(x[:, 0] + tilt * x[:, 1]) + 0.5 * x[:, 2] * x[:, 3]


def fit(net, opt, steps, tilt, gen):
    for step in range(steps):
        x, y = signal(64, gen, tilt)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


gen = torch.Generator().manual_seed(5)
net = Net()
print("pretrained", fit(net, torch.optim.Adam(net.parameters(), lr=5e-3), 70, 0.0, gen))
for depth, layer in enumerate(net.layers):
    for param in layer.parameters():
        param.register_post_accumulate_grad_hook(Slower(0.85 ** (len(net.layers) - depth)))
print("fine-tuned", fit(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), 70, 0.3, gen))
x, y = signal(1000, gen, 0.3)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x), y).item())
