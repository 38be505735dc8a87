"""Parameter inference with endless training data from a simulator."""
import torch
import torch.nn as nn

torch.set_num_threads(1)

SETTINGS = dict(n_obs=24, batch=32, rounds=40, steps_per_round=12, lr=2e-3, seed=77)


def simulate(n, n_obs):
    """Damped oscillation; returns noisy traces and the (scaled) parameters."""
    theta = torch.rand(n, 3)
    freq = 2 + 6 * theta[:, :1]
    damp = 0.2 + 2 * theta[:, 1:2]
    phase = 3 * theta[:, 2:]
    t = torch.linspace(0, 2, n_obs)
    trace = torch.exp(-damp * t) * torch.cos(freq * t + phase)
    return trace + 0.15 * torch.randn(n, n_obs), theta


class Posterior(nn.Module):
    """Gaussian posterior, one mean and one scale per parameter."""

    def __init__(self, n_obs, width=128):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(n_obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, trace):
        mean, log_scale = self.body(trace).chunk(2, dim=1)
        return torch.distributions.Normal(mean, log_scale.clamp(-5, 3).exp())


def evaluate(model, n_obs, n=1500):
    """Same test set every time, so that the rounds can be compared."""
    torch.manual_seed(2024)
    trace, theta = simulate(n, n_obs)
    model.eval()
    with torch.no_grad():
        nll = -model(trace).log_prob(theta).sum(1).mean()
    model.train()
    return nll.item()


def train_round(model, optimizer, cfg):
    total = 0.0
    for _ in range(cfg["steps_per_round"]):
        trace, theta = simulate(cfg["batch"], cfg["n_obs"])
        loss = -model(trace).log_prob(theta).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        total += loss.item()
    return total / cfg["steps_per_round"]


def main(cfg):
    torch.manual_seed(cfg["seed"])
    model = Posterior(cfg["n_obs"])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    nll = evaluate(model, cfg["n_obs"])
    print(f"start nll {nll:.4f}")
    for r in range(cfg["rounds"]):
        loss = train_round(model, optimizer, cfg)
        nll = evaluate(model, cfg["n_obs"])
        if r % 5 == 4:
            print(f"round {r + 1:2d} loss {loss:.4f} nll {nll:.4f}")
    print("RESULT", nll)


if __name__ == "__main__":
    main(SETTINGS)
