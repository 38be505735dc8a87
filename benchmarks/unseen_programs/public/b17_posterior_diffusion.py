"""Trains a diffusion model for amortised posterior sampling of simulator parameters."""
import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(43)


def expand_right_as(x, like):
    return x.view(*x.shape, *([1] * (like.ndim - x.ndim)))


class EDMNoiseSchedule:
    """Log-normal training noise levels with preconditioning weights."""

    sigma_data, p_mean, p_std = 0.5, -1.2, 1.6

    def sample_log_snr(self, n):
        sigma = torch.exp(self.p_mean + self.p_std * torch.randn(n))
        return -2 * torch.log(sigma)

    def sigma(self, log_snr_t):
        return torch.exp(-0.5 * log_snr_t)

    def scalings(self, sigma):
        total = sigma ** 2 + self.sigma_data ** 2
        return (self.sigma_data ** 2 / total, sigma * self.sigma_data / total.sqrt(), total.rsqrt(),
                torch.log(sigma) / 4)

    def get_weights_for_snr(self, log_snr_t):
        sigma = self.sigma(log_snr_t)
        return (sigma ** 2 + self.sigma_data ** 2) / (sigma * self.sigma_data) ** 2


class ResidualMLP(nn.Module):
    def __init__(self, dim_in, dim_out, width=64, depth=3):
        super().__init__()
        self.inp = nn.Linear(dim_in, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                                  nn.Linear(width, width)) for _ in range(depth))
        self.out = nn.Linear(width, dim_out)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(torch.nn.functional.silu(h))


class DiffusionModel(nn.Module):
    def __init__(self, dim, cond_dim):
        super().__init__()
        self.noise_schedule = EDMNoiseSchedule()
        self.subnet = ResidualMLP(dim + cond_dim + 1, dim)
        self.dim = dim

    def denoise(self, x_noisy, conditions, sigma):
        c_skip, c_out, c_in, c_noise = self.noise_schedule.scalings(sigma)
        raw = self.subnet(torch.cat([c_in * x_noisy, conditions, c_noise], -1))
        return c_skip * x_noisy + c_out * raw

    def compute_metrics(self, x, conditions, sample_weight=None):
        log_snr_t = expand_right_as(self.noise_schedule.sample_log_snr(len(x)), x)
        weights_for_snr = self.noise_schedule.get_weights_for_snr(log_snr_t)
        sigma = self.noise_schedule.sigma(log_snr_t)
        x_noisy = x + sigma * torch.randn_like(x)
        pred = self.denoise(x_noisy, conditions, sigma)
        loss = weights_for_snr * ((pred - x) ** 2).mean(dim=-1)
        if sample_weight is not None:
            loss = loss * sample_weight
        return {"loss": loss.mean()}

    @torch.no_grad()
    def sample(self, conditions, steps=18, lo=0.01, hi=20.0, rho=7.0):
        ramp = torch.linspace(0, 1, steps)
        sigmas = (hi ** (1 / rho) + ramp * (lo ** (1 / rho) - hi ** (1 / rho))) ** rho
        x = hi * torch.randn(len(conditions), self.dim)
        for i, s in enumerate(sigmas):
            nxt = sigmas[i + 1] if i + 1 < steps else torch.tensor(0.0)
            d = (x - self.denoise(x, conditions, s.expand(len(x), 1))) / s
            x = x + (nxt - s) * d
        return x


def simulator(n):
    """Two-moons-like simulator: observations of a bent function of the parameters."""
    theta = torch.rand(n, 2) * 2 - 1
    angle = math.pi * (torch.rand(n) - 0.5)
    r = 0.1 + 0.01 * torch.randn(n)
    p = torch.stack([r * angle.cos() + 0.25, r * angle.sin()], 1)
    x = p + torch.stack([-(theta.sum(1).abs()) / math.sqrt(2), (theta[:, 1] - theta[:, 0])
                         / math.sqrt(2)], 1)
    return 0.5 * theta / 0.577, x


def forward_mismatch(model, observed):
    """How far re-simulated data of posterior samples lies from the ring it must lie on."""
    theta = model.sample(observed) * 0.577 / 0.5
    shift = torch.stack([-(theta.sum(1).abs()) / math.sqrt(2), (theta[:, 1] - theta[:, 0])
                         / math.sqrt(2)], 1)
    rest = observed - shift - torch.tensor([0.25, 0.0])
    return (rest.norm(dim=1) - 0.1).abs().mean().item()


theta, observed = simulator(8000)
_, test_observed = simulator(800)
model = DiffusionModel(2, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 400)
history = []
for step in range(1, 401):
    idx = torch.randint(0, len(theta), (128,))
    metrics = model.compute_metrics(theta[idx], observed[idx])
    optimizer.zero_grad()
    metrics["loss"].backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.5)
    optimizer.step()
    scheduler.step()
    history.append(metrics["loss"].item())
    if step % 80 == 0:
        print(f"step {step} loss {sum(history[-40:]) / 40:.4f} "
              f"mismatch {forward_mismatch(model, test_observed):.4f}")
print("RESULT", round(forward_mismatch(model, test_observed), 5))
