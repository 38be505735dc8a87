"""Interpolate a tide gauge series from sample numbers with a sinusoidal encoding."""
import torch
torch.set_num_threads(1)
torch.manual_seed(171)
import math
from torch import nn

SAMPLES = 2400


def gauge():
    t = torch.arange(SAMPLES, dtype=torch.float64)
    tide = torch.sin(2 * math.pi * t / 49.7) + 0.4 * torch.sin(2 * math.pi * t / 47.2)
    swell = 0.3 * torch.sin(2 * math.pi * t / 9.3) * torch.cos(2 * math.pi * t / 700)
    return (tide + swell).float() + 0.05 * torch.randn(SAMPLES)


class SampleEncoding(nn.Module):
    """Sines and cosines of the sample number, over a range of periods."""

    def __init__(self, pairs, shortest, longest, dtype):
        super().__init__()
        periods = torch.logspace(math.log10(shortest), math.log10(longest), pairs)
        self.register_buffer("freq", 2 * math.pi / periods)
        self.dtype = dtype

    def forward(self, index):
        arg = index.to(self.dtype)[:, None] * self.freq
        return torch.cat([arg.sin(), arg.cos()], 1).to(self.dtype)


class TideNet(nn.Module):
    def __init__(self, width=96, dtype=torch.bfloat16):
        super().__init__()
        self.encode = SampleEncoding(48, 6.0, 3000.0, dtype)
        self.net = nn.Sequential(nn.Linear(96, width), nn.GELU(), nn.Linear(width, width),
                                 nn.GELU(), nn.Linear(width, 1))

    def forward(self, index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net(self.encode(index)).squeeze(1).float()


level = gauge()
held_out = torch.zeros(SAMPLES, dtype=torch.bool)
held_out[torch.randperm(SAMPLES)[:400]] = True
known = torch.nonzero(~held_out)[:, 0]
missing = torch.nonzero(held_out)[:, 0]

model = TideNet()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=6e-3, total_steps=300)


def interpolation_error():
    model.eval()
    with torch.no_grad():
        err = (model(missing) - level[missing]).square().mean().item()
    model.train()
    return err


for step in range(300):
    rows = known[torch.randint(len(known), (256,))]
    loss = (model(rows) - level[rows]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 60 == 0:
        print(f"step {step} loss {loss.item():.4f} gaps {interpolation_error():.4f}")

print("RESULT", interpolation_error())
