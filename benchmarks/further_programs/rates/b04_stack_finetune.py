"""Fine-tuning with layer-wise learning-rate decay."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)


class Stack(nn.Module):
    def __init__(self, d=32, depth=4, n_out=5):
        super().__init__()
        self.stem = nn.Linear(16, d)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
                                    for _ in range(depth))
        self.head = nn.Linear(d, n_out)

    def forward(self, x):
        h = self.stem(x)
        for b in self.blocks:
            h = h + b(h)
        return self.head(h)


def task(seed, n, rule):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    return x, rule(x)


PROJ = torch.randn(16, 5)
old_rule = lambda x: (x @ PROJ).argmax(1)
new_rule = lambda x: ((x @ PROJ) ** 2 * 0.6 + (x @ PROJ.flip(1))).argmax(1)


def layerwise_groups(model, base_lr, decay):
    layers = [model.head, *reversed(model.blocks), model.stem]
    mults = [decay ** i for i in range(len(layers))]
    groups = [{"params": list(l.parameters()), "lr": base_lr} for l in layers]
    return groups, mults


def train(model, opt, sched, x, y, steps, batch=48):
    for _ in range(steps):
        idx = torch.randint(len(x), (batch,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if sched is not None:
            sched.step()
    return loss.item()


model = Stack()
x, y = task(1, 2000, old_rule)
print("pretrain", train(model, torch.optim.AdamW(model.parameters(), lr=2e-3), None, x, y, 300))
model.head.reset_parameters()

STEPS, WARM = 350, 30
groups, mults = layerwise_groups(model, 4e-3, 0.45)
opt = torch.optim.AdamW(groups, weight_decay=0.01)


def shape(s):
    return (s + 1) / WARM if s < WARM else max(0.0, (STEPS - s) / (STEPS - WARM))


sched = torch.optim.lr_scheduler.LambdaLR(opt, [lambda s: mult * shape(s) for mult in mults])
x, y = task(2, 2000, new_rule)
print("finetune", train(model, opt, sched, x, y, STEPS))

vx, vy = task(3, 1500, new_rule)
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(vx), vy).item())
