"""Train an fp16 network that infers viscosity from the decay of velocity probes."""
import torch
torch.set_num_threads(1)
torch.manual_seed(133)
from torch import nn

PROBES, TIMES = 4, 16
STEPS, BATCH = 200, 96


def decay_traces(n, gen=None):
    visc = torch.rand(n, 1, 1, generator=gen) * 1.5 + 0.2
    k = torch.arange(1, PROBES + 1)[None, :, None]
    t = torch.linspace(0, 1, TIMES)[None, None]
    amp = torch.randn(n, PROBES, 1, generator=gen).abs() + 0.5
    v = amp * torch.exp(-visc * k * t) * torch.cos(3 * k * t)
    v = v + 0.03 * torch.randn(n, PROBES, TIMES, generator=gen)
    return v.flatten(1), visc.flatten()[:, None]


class ViscosityNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(PROBES * TIMES, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU())
        self.mean = nn.Linear(width, 1)
        self.logstd = nn.Linear(width, 1)

    def forward(self, x):
        h = self.net(x)
        return self.mean(h), self.logstd(h)


def gaussian_nll(mean, logstd, y):
    logstd = logstd.float().clamp(-4, 2)
    return (logstd + 0.5 * ((y - mean.float()) / logstd.exp()) ** 2).sum()


def finite_gradients(model):
    return all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def train(model, opt, scaler, stats):
    for step in range(STEPS):
        x, y = decay_traces(BATCH)
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            mean, logstd = model(x)
        loss = gaussian_nll(mean, logstd, y)
        scaler.scale(loss).backward()
        if not finite_gradients(model):
            stats["skipped"] += 1
            continue
        scaler.step(opt)
        scaler.update()
        if step % 50 == 49:
            print(f"step {step + 1} nll {loss.item() / BATCH:.4f} scale {scaler.get_scale():.0f}")


model = ViscosityNet()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
stats = {"skipped": 0}
train(model, opt, scaler, stats)
print("skipped", stats["skipped"], "of", STEPS)

x_val, y_val = decay_traces(1000, torch.Generator().manual_seed(2))
model.eval()
with torch.no_grad():
    mean, _ = model(x_val)
    print("RESULT", (mean - y_val).square().mean().item())
