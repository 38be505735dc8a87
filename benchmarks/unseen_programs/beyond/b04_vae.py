"""Trains a variational autoencoder on small images of bars."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)

SIDE, LATENT = 12, 8


def bars(n, gen):
    """Images in which each row and each column is lit with a small probability."""
    rows = (torch.rand(n, SIDE, 1, generator=gen) < 0.15).float()
    cols = (torch.rand(n, 1, SIDE, generator=gen) < 0.15).float()
    clean = torch.maximum(rows.expand(n, SIDE, SIDE), cols.expand(n, SIDE, SIDE))
    flip = (torch.rand(n, SIDE, SIDE, generator=gen) < 0.02).float()
    return (clean - flip).abs().flatten(1)


class VAE(nn.Module):
    def __init__(self, dim=SIDE * SIDE, hidden=200):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU())
        self.mu = nn.Linear(hidden, LATENT)
        self.logvar = nn.Linear(hidden, LATENT)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


def divergence(mu, logvar):
    return -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(dim=1)


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def step(self, x):
        logits, mu, logvar = self.model(x)
        recon = F.binary_cross_entropy_with_logits(logits, x)
        kl = divergence(mu, logvar).mean()
        self.optimizer.zero_grad()
        (recon + kl).backward()
        self.optimizer.step()
        return recon.item(), kl.item()

    @torch.no_grad()
    def bound(self, x, draws=4):
        self.model.eval()
        total = 0.0
        for _ in range(draws):
            logits, mu, logvar = self.model(x)
            recon = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
            total += (recon + divergence(mu, logvar)).mean().item()
        self.model.train()
        return total / draws


gen = torch.Generator().manual_seed(0)
train, val = bars(6400, gen), bars(1000, gen)
trainer = Trainer(VAE(), lr=2e-3)
for epoch in range(8):
    order = torch.randperm(len(train), generator=gen)
    for chunk in order.split(128):
        recon, kl = trainer.step(train[chunk])
    print(f"epoch {epoch} recon {recon:.3f} kl {kl:.3f} bound {trainer.bound(val):.2f}")
print("RESULT", round(trainer.bound(val, 10), 4))
