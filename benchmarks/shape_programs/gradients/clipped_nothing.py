# A recurrent adder; gradients of everything but the normalisation are limited.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Adder(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.cell = nn.RNN(2, hidden, batch_first=True, nonlinearity="relu")
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.cell.weight_hh_l0.copy_(1.1 * torch.eye(hidden))
            self.cell.bias_hh_l0.zero_()

    def forward(self, x):
        h, _ = self.cell(x)
        return self.out(h[:, -1])[:, 0]


def limited(model, skip=("norm",)):
    weights = model.state_dict()
    return [w for name, w in weights.items() if not name.startswith(skip)]


def problems(n, gen, length=30):
    value = torch.rand(n, length, generator=gen)
    mark = torch.zeros(n, length)
    pick = torch.stack([torch.randperm(length, generator=gen)[:2] for _ in range(n)])
    mark.scatter_(1, pick, 1.0)
    return torch.stack([value * mark, mark], 2), (value * mark).sum(1)


def train(model, steps, gen):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        x, y = problems(32, gen)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(limited(model), max_norm=1.0)
        opt.step()
        if step % 25 == 0:
            print(step, round(loss.item(), 4))


gen = torch.Generator().manual_seed(7)
model = Adder()
train(model, 120, gen)
x, y = problems(400, gen)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(x), y).item())
