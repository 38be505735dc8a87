import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.backup = None

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v, 1 - self.decay)

    def apply(self, model):
        self.backup = model.state_dict()
        model.load_state_dict(self.shadow)

    def restore(self, model):
        model.load_state_dict(self.backup)
        self.backup = None


def checker(n, gen):
    x = torch.rand(n, 2, generator=gen) * 4
    y = (x.floor().sum(1) % 2).long()
    return x - 2, y


gen = torch.Generator().manual_seed(1)
x, y = checker(2000, gen)
vx, vy = checker(1000, gen)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
ema = EMA(model, decay=0.99)
opt = torch.optim.Adam(model.parameters(), lr=4e-3)


def evaluate():
    ema.apply(model)
    model.eval()
    with torch.no_grad():
        value = F.cross_entropy(model(vx), vy).item()
    ema.restore(model)
    model.train()
    return value


for step in range(1, 1201):
    idx = torch.randint(len(x), (64,), generator=gen)
    loss = F.cross_entropy(model(x[idx]), y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(model)
    if step % 20 == 0:
        score = evaluate()
        if step % 200 == 0:
            print(f"step {step:5d} loss {loss.item():.4f} ema val {score:.4f}")

print("RESULT", evaluate())
