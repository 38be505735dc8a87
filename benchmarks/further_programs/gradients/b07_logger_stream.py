import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(27)


class SpikeGuard:
    def __init__(self, factor=5.0, beta=0.95):
        self.avg, self.factor, self.beta, self.skipped = None, factor, beta, 0

    def bad(self, value):
        if self.avg is not None and value > self.factor * self.avg:
            self.skipped += 1
            return True
        self.avg = value if self.avg is None else self.beta * self.avg + (1 - self.beta) * value
        return False


def stream(n_batches, gen):
    for _ in range(n_batches):
        x = torch.randn(32, 8, generator=gen)
        y = torch.relu(x[:, :2]).sum(1, keepdim=True) - torch.tanh(x[:, 2:3] * x[:, 3:4])
        y = y + 0.05 * torch.randn(32, 1, generator=gen)
        if torch.rand(1, generator=gen) < 0.08:
            y = y * 0 + 15.0     # the logger's overflow value
        yield x, y


gen = torch.Generator().manual_seed(1)
net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.8)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=1200)
guard = SpikeGuard()
criterion = nn.MSELoss()

for step, (x, y) in enumerate(stream(1200, gen)):
    loss = criterion(net(x), y)
    loss.backward()

    if guard.bad(loss.item()):
        continue
    opt.step()
    sched.step()
    opt.zero_grad()
    if step % 200 == 0:
        print(f"step {step} loss {loss.item():.4f} skipped {guard.skipped}")

net.eval()
g = torch.Generator().manual_seed(77)
with torch.no_grad():
    x = torch.randn(3000, 8, generator=g)
    y = torch.relu(x[:, :2]).sum(1, keepdim=True) - torch.tanh(x[:, 2:3] * x[:, 3:4])
    print("RESULT", criterion(net(x), y).item())
