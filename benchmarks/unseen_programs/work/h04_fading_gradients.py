"""House price regression where gradients fade between steps instead of a momentum buffer."""
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(44)


def houses(n, gen):
    size = 60 + 80 * torch.rand(n, generator=gen)
    age = 80 * torch.rand(n, generator=gen)
    distance = 20 * torch.rand(n, generator=gen)
    rooms = (size / 30 + torch.rand(n, generator=gen)).floor()
    price = 2.0 * size * torch.exp(-distance / 15) - 0.6 * age + 8 * rooms
    price = price + 0.01 * (age - 40) ** 2 + 4 * torch.randn(n, generator=gen)
    return torch.stack([size, age, distance, rooms], 1), price


class PriceNet(nn.Module):
    def __init__(self, x, y, width=48):
        super().__init__()
        self.register_buffer("shift", x.mean(0))
        self.register_buffer("scale", x.std(0))
        self.y_mean, self.y_std = y.mean().item(), y.std().item()
        self.net = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net((x - self.shift) / self.scale).squeeze(1)

    def price(self, x):
        return self(x) * self.y_std + self.y_mean

    def target(self, y):
        return (y - self.y_mean) / self.y_std


def fade(params, keep):
    """The gradients themselves are the momentum: g <- keep * g, and backward adds to them."""
    for p in params:
        if p.grad is not None:
            p.grad.mul_(keep)


def main():
    gen = torch.Generator().manual_seed(440)
    x, y = houses(2500, gen)
    v_x, v_y = houses(500, gen)
    model = PriceNet(x, y)
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=0.02)
    steps, first_lr = 400, 0.02
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half_way.pt"
        for step in range(steps):
            opt.param_groups[0]["lr"] = first_lr * (1 - step / steps)
            fade(params, keep=0.9)
            pick = torch.randint(0, len(x), (48,), generator=gen)
            loss = F.huber_loss(model(x[pick]), model.target(y[pick]))
            loss.backward()
            opt.step()
            if step == steps // 2:
                torch.save(model.state_dict(), path)
            if step % 80 == 0:
                print(f"step {step} loss {loss.item():.5f}")
        half_way = torch.load(path)
    now = model.state_dict()
    drift = sum((now[k] - half_way[k]).norm().item() for k in now)
    print(f"moved {drift:.3f} in the second half")
    with torch.no_grad():
        error = (model.price(v_x) - v_y).square().mean().sqrt().item() / v_y.std().item()
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
