# Network with two-valued weights: real weights are stored, their signs are used.
import torch
from torch import nn
from torch.nn.utils import parametrize

torch.manual_seed(0)
torch.set_num_threads(1)


class TwoValued(nn.Module):
    def forward(self, weight):
        scale = weight.detach().abs().mean(dim=1, keepdim=True)
        soft = weight.clamp(-1.0, 1.0)
        hard = scale * torch.where(weight < 0, -1.0, 1.0)
        return torch.sub(hard.detach(), soft).add(soft)


def two_valued(layer):
    parametrize.register_parametrization(layer, "weight", TwoValued())
    return layer


class Classifier(nn.Module):
    def __init__(self, inputs=24, width=64, classes=4):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.middle = two_valued(nn.Linear(width, width))
        self.last = two_valued(nn.Linear(width, classes))
        self.norm = nn.BatchNorm1d(width)
        two_valued(self.first)

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        return self.last(h + torch.relu(self.middle(h)))


def draw(n, gen):
    y = torch.randint(0, 4, (n,), generator=gen)
    x = torch.randn(n, 24, generator=gen)
    x[:, :4] += 1.5 * nn.functional.one_hot(y, 4)
    x[:, 4:8] -= 1.5 * nn.functional.one_hot(y, 4)
    return x, y


gen = torch.Generator().manual_seed(2)
net = Classifier()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(120):
    x, y = draw(64, gen)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
net.eval()
x, y = draw(800, gen)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x), y).item())
