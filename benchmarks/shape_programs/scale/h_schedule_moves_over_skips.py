"""Noise prediction for a one dimensional diffusion model, with callbacks around each batch."""
import torch
from torch import nn

torch.manual_seed(19)
torch.set_num_threads(1)
STEPS = 100


class Callback:
    def on_batch_end(self, loop): ...


class History(Callback):
    def __init__(self):
        self.losses = []

    def on_batch_end(self, loop):
        self.losses.append(loop.loss)


class Loop:
    def __init__(self, net, opt, callbacks):
        self.net, self.opt, self.callbacks = net, opt, callbacks
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 18)

    def batch(self, x):
        t = torch.rand(len(x), 1)
        eps = torch.randn_like(x)
        noisy = (1 - t).sqrt() * x + t.sqrt() * eps
        self.opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            guess = self.net(torch.cat([noisy, t], 1))
        loss = (guess.float() - eps).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.loss = loss.item()
        for callback in self.callbacks:
            callback.on_batch_end(self)


def points(n):
    angle = torch.rand(n) * 6.28
    return torch.stack([angle.cos(), angle.sin()], 1).repeat(1, 4)


net = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
history = History()
decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.97)
opt.register_step_post_hook(lambda *unused: decay.step())
loop = Loop(net, opt, [history])
for _ in range(STEPS):
    loop.batch(points(128))
print("RESULT", sum(history.losses[-10:]) / 10)
