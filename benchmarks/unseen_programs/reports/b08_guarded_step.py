"""Regression with per-parameter limits on the gradient, set once at start."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(14)

LIMIT = 0.05


def pendulum_energy(n, seed):
    gen = torch.Generator().manual_seed(seed)
    angle = (torch.rand(n, 2, generator=gen) * 2 - 1) * 3.0
    speed = torch.randn(n, 2, generator=gen)
    kinetic = speed[:, 0] ** 2 + 0.5 * speed[:, 1] ** 2 + speed.prod(1) * torch.cos(angle[:, 0] - angle[:, 1])
    potential = -2 * torch.cos(angle[:, 0]) - torch.cos(angle[:, 1])
    x = torch.cat([angle, speed], dim=1)
    return x, (kinetic + potential).unsqueeze(1)


class EnergyNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        self.act = nn.Softplus()

    def forward(self, x):
        h = self.act(self.inp(x))
        h = h + self.act(self.mid(h))
        return self.out(h)


def limit(grad):
    grad.clamp_(-LIMIT, LIMIT)


def guard(model):
    """Installs the limits; backward() then takes care of everything."""
    handles = []
    for p in model.parameters():
        handles.append(p.register_post_accumulate_grad_hook(limit))
    return handles


def loop(model, data, val, steps=700, batch=64):
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    for step in range(steps):
        idx = torch.randint(0, len(x), (batch,))
        loss = nn.functional.smooth_l1_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 99:
            print(f"step {step + 1:4d} train {loss.item():.4f} val {score(model, *val):.4f}")


@torch.no_grad()
def score(model, x, y):
    return nn.functional.mse_loss(model(x), y).item()


def main():
    train, val = pendulum_energy(4000, 1), pendulum_energy(1000, 2)
    scale = train[1].std()
    train, val = (train[0], train[1] / scale), (val[0], val[1] / scale)
    model = EnergyNet()
    handles = guard(model)
    loop(model, train, val)
    for h in handles:
        h.remove()
    print("RESULT", score(model, *val))


main()
