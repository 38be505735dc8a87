"""Predicts strain at six gauges of a bridge from traffic, in fp16 mixed precision."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(53)


class StrainNet(nn.Module):
    def __init__(self, inputs=8, gauges=6, width=64):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.outer = nn.Linear(width, gauges)

    def forward(self, traffic):
        return self.outer(self.inner(traffic))


def crossings(n, gen):
    """Axle loads and positions, strain in microstrain."""
    mix = torch.randn(8, 6, generator=torch.Generator().manual_seed(99))
    traffic = torch.rand(n, 8, generator=gen) * 2 - 1
    strain = 60.0 * torch.tanh(traffic @ mix) + 25.0 * traffic[:, :6].pow(2)
    return traffic, strain + 2.0 * torch.randn(n, 6, generator=gen)


def make_batches(x, y, size, gen):
    order = torch.randperm(len(x), generator=gen)
    return [(x[i], y[i]) for i in order.split(size)]


def train_one_epoch(net, opt, batches, max_norm):
    scaler = torch.amp.GradScaler("cpu")
    total = 0.0
    for traffic, strain in batches:
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(traffic)
        loss = (pred.float() - strain).square().sum(1).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        scaler.step(opt)
        scaler.update()
        total += loss.item()
    return total / len(batches)


@torch.no_grad()
def relative_error(net, traffic, strain):
    net.eval()
    err = (net(traffic) - strain).norm() / strain.norm()
    net.train()
    return err.item()


def main(epochs=24, batch=100):
    gen = torch.Generator().manual_seed(21)
    x, y = crossings(1000, gen)
    val = crossings(400, gen)
    net = StrainNet()
    opt = torch.optim.Adam(net.parameters(), lr=6e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.95)
    for epoch in range(epochs):
        batches = make_batches(x, y, batch, gen)
        loss = train_one_epoch(net, opt, batches, max_norm=500.0)
        sched.step()
        print(f"epoch {epoch} loss {loss:.1f} rel {relative_error(net, *val):.4f}")
    return relative_error(net, *val)


if __name__ == "__main__":
    print("RESULT", main())
