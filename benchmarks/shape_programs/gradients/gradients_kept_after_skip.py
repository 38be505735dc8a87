# Sensor regression with broken records; steps with wild gradients are left out by the wrapper.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class CarefulOptimizer:
    def __init__(self, inner, limit):
        self.inner = inner
        self.limit = limit
        self.left_out = 0

    def _params(self):
        return [p for g in self.inner.param_groups for p in g["params"] if p.grad is not None]

    def apply(self, loss):
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._params()])
        if not norm < self.limit:
            self.left_out += 1
            return False
        self.inner.step()
        self.inner.zero_grad()
        return True


class Sensors:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n, broken):
        x = torch.randn(n, 10, generator=self.gen)
        y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
        if broken:
            y[:3] = 900.0
        return x, y


net = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 1))
opt = CarefulOptimizer(torch.optim.Adam(net.parameters(), lr=1e-2), limit=20.0)
data = Sensors(3)
for step in range(150):
    x, y = data.batch(64, broken=step % 15 == 6)
    loss = nn.functional.mse_loss(net(x)[:, 0], y)
    opt.apply(loss)
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
print("steps left out:", opt.left_out)
x, y = data.batch(1000, False)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x)[:, 0], y).item())
