import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(4)
torch.set_num_threads(1)


def moons(n, gen):
    t = torch.rand(n, generator=gen) * torch.pi
    label = torch.randint(0, 2, (n,), generator=gen)
    x = torch.where(label == 0, t.cos(), 1 - t.cos())
    y = torch.where(label == 0, t.sin(), 0.5 - t.sin())
    return torch.stack([x, y], 1) + 0.12 * torch.randn(n, 2, generator=gen), label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.last = nn.Linear(32, 2)

    def forward(self, x):
        return self.last(self.layers(x))


def main():
    gen = torch.Generator().manual_seed(0)
    x, y = moons(2000, gen)
    vx, vy = moons(1000, gen)
    net = Net()
    opt = torch.optim.SGD([
        {"params": net.layers.parameters()},
        {"params": net.last.parameters(), "lr": 0.1},
    ], lr=0.2, momentum=0.9)
    # start far too high and let the scaler find the largest scale that fits
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=40)
    skipped = 0
    for step in range(500):
        idx = torch.randint(0, len(x), (64,), generator=gen)
        with torch.autocast("cpu", torch.float16):
            out = net(x[idx])
            loss = F.cross_entropy(out.float(), y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
        if step % 50 == 0:
            print(f"{step:4d} loss {loss.item():.4f} norm {norm:.3f} scale {scaler.get_scale():.0f} skipped {skipped}")
    with torch.no_grad():
        print("RESULT", F.cross_entropy(net(vx), vy).item())


main()
