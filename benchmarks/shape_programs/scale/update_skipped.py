"""Heat flux regression; batches with an unusable gradient are left out."""
import math

import torch
from torch import nn

torch.manual_seed(24)
torch.set_num_threads(1)


def plates(n):
    x = torch.rand(n, 5) * 2 - 1
    flux = 8 * x[:, :1] * torch.exp(x[:, 1:2]) + 5 * torch.sin(3 * x[:, 2:3]) * x[:, 3:4]
    return x, flux


class Trainer:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu")
        self.left_out = 0

    def gradient_norm(self):
        norms = torch._foreach_norm([p.grad for p in self.net.parameters()])
        return torch.stack(norms).norm().item() / self.scaler.get_scale()

    def train_batch(self, x, y):
        self.opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = self.net(x)
        loss = (out.float() - y).pow(2).mean()
        self.scaler.scale(loss).backward()
        if not math.isfinite(self.gradient_norm()):
            self.left_out += 1
            return None
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


x, y = plates(2000)
xv, yv = plates(500)
trainer = Trainer(nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)), 6e-3)
for step in range(100):
    pick = torch.randint(0, len(x), (128,))
    trainer.train_batch(x[pick], y[pick])

print("left out", trainer.left_out)
with torch.no_grad():
    print("RESULT", float((trainer.net(xv) - yv).pow(2).mean()))
