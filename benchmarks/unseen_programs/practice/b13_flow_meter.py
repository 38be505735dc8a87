"""Calibrate a flow meter: map raw sensor traces to flow rates with an fp16 network."""
import torch
torch.set_num_threads(1)
torch.manual_seed(93)
import argparse
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--accumulate", type=int, default=2)
args = parser.parse_args([])


def traces(n):
    flow = torch.rand(n, 1) * 2
    temp = torch.randn(n, 1)
    t = torch.linspace(0, 1, 32)
    pulse = torch.sin(t * (4 + 6 * flow)) * torch.exp(-t * (1 + 0.3 * temp))
    drift = 0.1 * temp * t
    x = pulse + drift + 0.05 * torch.randn(n, 32)
    return torch.cat([x, temp], 1), flow - 1


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.inner(x))


class Meter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Linear(33, width)
        self.blocks = nn.Sequential(ResidualBlock(width), ResidualBlock(width))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.blocks(self.stem(x)))


class MixedPrecisionLoop:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 13)

    def backward(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.model(x)
        loss = nn.functional.smooth_l1_loss(pred.float(), y, beta=0.2)
        loss = loss / args.accumulate
        self.scaler.scale(loss)
        loss.backward()
        return loss.item()

    def step(self):
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return norm.item()


x_tr, y_tr = traces(6000)
x_va, y_va = traces(1000)
model = Meter()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
loop = MixedPrecisionLoop(model, optimizer)
for step in range(args.steps):
    for _ in range(args.accumulate):
        rows = torch.randint(len(x_tr), (args.batch // args.accumulate,))
        value = loop.backward(x_tr[rows], y_tr[rows])
    norm = loop.step()
    if step % 75 == 0:
        print(f"step {step} loss {value:.4f} grad norm {norm:.5f}")

with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(x_va), y_va).item())
