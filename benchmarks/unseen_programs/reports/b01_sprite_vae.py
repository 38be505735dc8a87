"""Variational autoencoder on small synthetic sprites."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


@dataclass
class Config:
    side: int = 14
    latent: int = 6
    hidden: int = 128
    epochs: int = 14
    batch: int = 64
    lr: float = 2e-3
    seed: int = 5


def make_sprites(n, side, gen):
    """Soft ellipses with random centre, size and tilt, standardised."""
    grid = torch.linspace(-1, 1, side)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    cx = torch.rand(n, 1, 1, generator=gen) - 0.5
    cy = torch.rand(n, 1, 1, generator=gen) - 0.5
    angle = torch.rand(n, 1, 1, generator=gen) * 3.1416
    a = 0.25 + 0.4 * torch.rand(n, 1, 1, generator=gen)
    b = 0.25 + 0.4 * torch.rand(n, 1, 1, generator=gen)
    u = (xx - cx) * angle.cos() + (yy - cy) * angle.sin()
    v = -(xx - cx) * angle.sin() + (yy - cy) * angle.cos()
    img = torch.sigmoid(6 * (1 - (u / a) ** 2 - (v / b) ** 2))
    return img.flatten(1)


class VAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.side ** 2
        self.encoder = nn.Sequential(nn.Linear(d, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU())
        self.to_mu = nn.Linear(cfg.hidden, cfg.latent)
        self.to_logvar = nn.Linear(cfg.hidden, cfg.latent)
        self.decoder = nn.Sequential(
            nn.Linear(cfg.latent, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU(),
            nn.Linear(cfg.hidden, d))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.to_mu(h), self.to_logvar(h)
        z = mu
        if self.training:
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def elbo_loss(out, x, mu, logvar):
    recon = F.mse_loss(out, x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(dim=1).mean()
    return recon + kl, recon, kl


@torch.no_grad()
def reconstruction_error(model, x):
    model.eval()
    out, _, _ = model(x)
    return (out - x).pow(2).mean().item()


def main(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    images = make_sprites(3600, cfg.side, gen)
    mean, std = images[:3000].mean(), images[:3000].std()
    images = (images - mean) / std
    train, val = images[:3000], images[3000:]
    loader = DataLoader(TensorDataset(train), batch_size=cfg.batch, shuffle=True)

    model = VAE(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        model.train()
        sums = torch.zeros(2)
        for (x,) in loader:
            out, mu, logvar = model(x)
            loss, recon, kl = elbo_loss(out, x, mu, logvar)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([recon.detach(), kl.detach()])
        recon, kl = (sums / len(loader)).tolist()
        print(f"epoch {epoch:2d} recon {recon:.4f} kl {kl:.4f} val {reconstruction_error(model, val):.4f}")
    print("RESULT", reconstruction_error(model, val))


if __name__ == "__main__":
    main(Config())
