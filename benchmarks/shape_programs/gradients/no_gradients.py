# Temporal convolutions on two-channel motion data; filters are kept as direction and length.
import torch
from torch import nn
from torch.nn.utils import parametrizations

torch.manual_seed(0)
torch.set_num_threads(1)


class MotionNet(nn.Module):
    def __init__(self, width=16, classes=3):
        super().__init__()
        self.a = nn.Conv1d(2, width, 5, padding=2)
        self.b = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = torch.relu(self.b(h))
        return self.out(h.mean(2))


def reparametrize(model):
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Linear)):
            parametrizations.weight_norm(module)
    return model


class Experiment:
    def __init__(self, lr=1e-2):
        self.model = MotionNet()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.model = reparametrize(self.model)

    def step(self, x, y):
        self.opt.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.opt.step()
        return loss.item()


def motions(n, gen):
    y = torch.randint(0, 3, (n,), generator=gen)
    t = torch.linspace(0, 6.28, 40)
    speed = (2.0 + 2.0 * y.float())[:, None]
    phase = 6.28 * torch.rand(n, 1, generator=gen)
    x = torch.stack([torch.sin(speed * t + phase), torch.cos(speed * t + phase)], 1)
    return x + 0.4 * torch.randn(n, 2, 40, generator=gen), y


gen = torch.Generator().manual_seed(4)
run = Experiment()
for step in range(100):
    value = run.step(*motions(32, gen))
    if step % 20 == 0:
        print(step, round(value, 4))
x, y = motions(300, gen)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(run.model(x), y).item())
