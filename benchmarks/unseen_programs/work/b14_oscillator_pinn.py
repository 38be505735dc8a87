"""Physics-informed network for a damped oscillator, fitted with L-BFGS."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(16)

DAMPING, OMEGA, T_END = 0.4, 4.0, 3.0
X0, V0 = 1.0, 0.0


def exact(t):
    """Closed form of x'' + 2 d x' + w^2 x = 0 for the underdamped case."""
    w = math.sqrt(OMEGA ** 2 - DAMPING ** 2)
    b = (V0 + DAMPING * X0) / w
    return torch.exp(-DAMPING * t) * (X0 * torch.cos(w * t) + b * torch.sin(w * t))


class Trajectory(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, t):
        return X0 + V0 * t + t ** 2 * self.net(2 * t / T_END - 1)


def derivative(y, t):
    return torch.autograd.grad(y, t, torch.ones_like(y), create_graph=True)[0]


def residual(model, t):
    x = model(t)
    v = derivative(x, t)
    a = derivative(v, t)
    return a + 2 * DAMPING * v + OMEGA ** 2 * x


def relative_error(model):
    t = torch.linspace(0, T_END, 301)[:, None]
    with torch.no_grad():
        diff = model(t) - exact(t)
    return (diff.norm() / exact(t).norm()).item()


def fit(model, rounds, points):
    opt = torch.optim.LBFGS(
        model.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe"
    )
    t = torch.linspace(0, T_END, points)[:, None].requires_grad_()
    weight = torch.exp(-0.3 * t.detach())

    def closure():
        loss = (weight * residual(model, t) ** 2).mean()
        loss.backward()
        return loss

    for r in range(rounds):
        opt.zero_grad()
        loss = opt.step(closure)
        if r % 10 == 0:
            print(f"round {r} residual {loss.item():.3e} error {relative_error(model):.4f}")


def main():
    model = Trajectory()
    print(f"error before {relative_error(model):.4f}")
    fit(model, rounds=60, points=80)
    print(f"RESULT {relative_error(model):.6f}")


if __name__ == "__main__":
    main()
