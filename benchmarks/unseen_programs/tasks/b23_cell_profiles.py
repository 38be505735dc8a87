"""Trains a variational autoencoder of gene expression and reports its bound per cell."""
from types import SimpleNamespace

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(127)

cfg = SimpleNamespace(genes=30, latent=4, hidden=64, epochs=10, batch=80, lr=3e-3,
                      kl_max=1.0, kl_warmup=12, noise=0.5)


def cells(n, seed):
    g = torch.Generator().manual_seed(seed)
    shape = torch.Generator().manual_seed(0)
    programs = torch.randn(3, cfg.genes, generator=shape)
    activity = torch.randn(n, 3, generator=g)
    level = torch.tanh(activity @ programs)
    return level + cfg.noise * torch.randn(n, cfg.genes, generator=g)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cfg.genes, cfg.hidden), nn.ELU())
        self.mean = nn.Linear(cfg.hidden, cfg.latent)
        self.logvar = nn.Linear(cfg.hidden, cfg.latent)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h), self.logvar(h).clamp(-10, 6)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Sequential(
            nn.Linear(cfg.latent, cfg.hidden), nn.ELU(), nn.Linear(cfg.hidden, cfg.genes))

    def forward(self, x):
        mean, logvar = self.encoder(x)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        return self.decoder(z), mean, logvar


def terms(model, x):
    recon, mean, logvar = model(x)
    fit = 0.5 * ((recon - x) / cfg.noise).pow(2).sum(-1).mean()
    kl = 0.5 * (mean.pow(2) + logvar.exp() - logvar - 1).sum(-1).mean()
    return fit, kl


def kl_weight(epoch):
    """Linear warm-up of the weight of the divergence."""
    return cfg.kl_max * min(1, epoch // cfg.kl_warmup)


@torch.no_grad()
def bound(model, x, draws=5):
    model.eval()
    values = [sum(terms(model, x)).item() for _ in range(draws)]
    model.train()
    return sum(values) / draws


def train(model, x, val):
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        beta = kl_weight(epoch)
        for pick in torch.randperm(len(x)).split(cfg.batch):
            fit, kl = terms(model, x[pick])
            loss = fit + beta * kl
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        print(f"epoch {epoch} fit {fit.item():.2f} kl {kl.item():.2f} "
              f"bound {bound(model, val):.2f}")
    return bound(model, val)


if __name__ == "__main__":
    print("RESULT", train(Vae(), cells(2000, 1), cells(400, 2)))
