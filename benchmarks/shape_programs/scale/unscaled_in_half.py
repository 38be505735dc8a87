"""Height field from coordinates: a half precision net, single precision copies for the optimizer."""
import torch
from torch import nn

torch.manual_seed(12)
torch.set_num_threads(1)
SCALE = 2.0 ** 24
UNIT = 2e-4


def field(n):
    x = torch.rand(n, 2) * 2 - 1
    feats = torch.cat([x, torch.sin(3 * x), torch.cos(3 * x)], 1)
    return feats, UNIT * torch.sin(4 * x[:, :1] + 2 * x[:, 1:])


class Twin:
    """Keeps float32 copies of the weights of a half precision module."""

    def __init__(self, module, **options):
        self.module = module
        self.weights = [p.detach().float().clone().requires_grad_() for p in module.parameters()]
        self.opt = torch.optim.Adam(self.weights, **options)
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.collect)

    @staticmethod
    def collect(p):
        p.grad.mul_(1 / SCALE)

    def step(self):
        for w, p in zip(self.weights, self.module.parameters()):
            w.grad = p.grad.float()
            p.grad = None
        self.opt.step()
        with torch.no_grad():
            for w, p in zip(self.weights, self.module.parameters()):
                p.copy_(w)


x, y = field(1024)
xv, yv = field(256)
net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).half()
twin = Twin(net, lr=6e-3, eps=1e-20)
for step in range(120):
    pick = torch.randint(0, len(x), (128,))
    out = net(x[pick].half()).float() * UNIT
    loss = (out - y[pick]).pow(2).mean()
    (loss * SCALE).backward()
    twin.step()

with torch.no_grad():
    print("RESULT", float((net(xv.half()).float() * UNIT - yv).abs().mean() / UNIT))
