import contextlib
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_num_threads(1)


class Averager:
    def __init__(self, params, decay=0.97):
        self.params = list(params)
        self.avg = [p.detach().clone() for p in self.params]
        self.decay = decay

    @torch.no_grad()
    def step(self):
        torch._foreach_lerp_(self.avg, [p.detach() for p in self.params], 1 - self.decay)

    def swap(self):
        for p, a in zip(self.params, self.avg):
            tmp = p.data.clone()
            p.data.copy_(a)
            a.copy_(tmp)

    @contextlib.contextmanager
    def averaged(self):
        self.swap()
        try:
            yield
        finally:
            self.swap()


net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
avg = Averager(net.parameters())


def f(x):
    return (x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]))[:, None]


vx = torch.randn(1000, 3)
for step in range(400):
    x = torch.randn(64, 3)
    loss = F.mse_loss(net(x), f(x) + 0.3 * torch.randn(64, 1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    avg.step()
    if step % 40 == 39:
        with torch.no_grad(), avg.averaged():
            v_avg = F.mse_loss(net(vx), f(vx)).item()
        with torch.no_grad():
            v_raw = F.mse_loss(net(vx), f(vx)).item()
        print(step, f"raw {v_raw:.4f} avg {v_avg:.4f}")

avg.swap()
with torch.no_grad():
    print("result:", F.mse_loss(net(vx), f(vx)).item())
