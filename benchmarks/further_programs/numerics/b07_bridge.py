import torch
from torch import nn

torch.manual_seed(16)
torch.set_num_threads(1)


class MasterOptimizer:
    """fp16 model weights, fp32 master weights, static loss scale."""

    def __init__(self, model, lr, scale):
        self.model_params = [p for p in model.parameters() if p.requires_grad]
        self.master = [p.detach().float().clone().requires_grad_(True) for p in self.model_params]
        self.opt = torch.optim.Adam(self.master, lr=lr, eps=1e-12)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, 600)
        self.scale = scale

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self):
        for master, p in zip(self.master, self.model_params):
            master.grad = (p.grad / self.scale).float()
            p.grad = None
        if all(torch.isfinite(m.grad).all() for m in self.master):
            self.opt.step()
        self.sched.step()
        with torch.no_grad():
            for master, p in zip(self.master, self.model_params):
                p.copy_(master)


def displacement(x):
    # in metres; the bridge moves by fractions of a millimetre, the net predicts millimetres
    return 4e-4 * (torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3])


net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
net.half()
optimizer = MasterOptimizer(net, lr=3e-3, scale=2.0 ** 18)
for step in range(600):
    x = torch.rand(64, 3) * 2 - 1
    loss = nn.functional.mse_loss(1e-3 * net(x.half()).float(), displacement(x))
    optimizer.backward(loss)
    optimizer.step()
    if step % 150 == 0:
        print(step, loss.item())

with torch.no_grad():
    x = torch.rand(2000, 3) * 2 - 1
    pred = 1e-3 * net(x.half()).float()
    print("RESULT", (1e3 * (pred - displacement(x))).pow(2).mean().item())
