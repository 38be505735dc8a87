"""Variational autoencoder of absorption spectra with a prior term that warms up."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(36)

CHANNELS, LATENT = 80, 5


def spectra(n, gen):
    """Mixtures of absorption lines on a sloping continuum."""
    wave = torch.linspace(0, 1, CHANNELS)
    continuum = 1 + 0.3 * torch.randn(n, 1, generator=gen) * (wave - 0.5)
    depth = torch.rand(n, 3, 1, generator=gen)
    shift = 0.03 * torch.randn(n, 1, 1, generator=gen)
    centres = torch.tensor([0.22, 0.48, 0.77]).view(1, 3, 1)
    widths = torch.tensor([0.02, 0.05, 0.03]).view(1, 3, 1)
    lines = depth * torch.exp(-0.5 * ((wave - centres - shift) / widths) ** 2)
    return continuum - 0.6 * lines.sum(1) + 0.02 * torch.randn(n, CHANNELS, generator=gen)


class SpectraVAE(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(CHANNELS, width), nn.SiLU(), nn.Linear(width, 2 * LATENT)
        )
        self.decode = nn.Sequential(
            nn.Linear(LATENT, width), nn.SiLU(), nn.Linear(width, CHANNELS)
        )

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, 1)
        logvar = logvar.clamp(-8, 3)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp() if self.training else mu
        return self.decode(z), mu, logvar


class Smoothed:
    """Exponential averages of named quantities, for the log."""

    def __init__(self, keep=0.97):
        self.keep, self.values = keep, {}

    def update(self, **parts):
        for name, value in parts.items():
            old = self.values.get(name, value)
            self.values[name] = self.keep * old + (1 - self.keep) * value

    def __str__(self):
        return " ".join(f"{k} {float(v):.4f}" for k, v in self.values.items())


def loss_parts(model, x):
    y, mu, logvar = model(x)
    rec = F.mse_loss(y, x, reduction="none").sum(1).mean() / (2 * 0.05 ** 2)
    kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).sum(1).mean()
    return rec, kl


def train(model, data, steps, batch, gen):
    opt = torch.optim.Adamax(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    smoothed = Smoothed()
    for step in range(steps):
        beta = min(1.0, (step + 1) / 100)
        x = data[torch.randint(0, len(data), (batch,), generator=gen)]
        rec, kl = loss_parts(model, x)
        loss = rec + beta * kl
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        opt.step()
        sched.step()
        smoothed.update(rec=rec, kl=kl, total=loss)
        if step % 80 == 0:
            print(f"step {step} {smoothed}")


def main():
    gen = torch.Generator().manual_seed(360)
    data, val = spectra(3000, gen), spectra(500, gen)
    model = SpectraVAE()
    train(model, data, 400, 64, gen)
    model.eval()
    with torch.no_grad():
        rec, kl = loss_parts(model, val)
    print(f"RESULT {(rec + kl).item():.5f}")


if __name__ == "__main__":
    main()
