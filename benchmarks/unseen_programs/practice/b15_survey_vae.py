"""Fit a variational autoencoder to yes/no answers of a health survey."""
import torch
torch.set_num_threads(1)
torch.manual_seed(110)
from torch import nn
import torch.nn.functional as F

QUESTIONS, FACTORS = 40, 4


def survey(n):
    loading = torch.randn(FACTORS, QUESTIONS, generator=torch.Generator().manual_seed(3)) * 1.5
    base = torch.randn(QUESTIONS, generator=torch.Generator().manual_seed(4)) * 0.7
    z = torch.randn(n, FACTORS)
    return torch.bernoulli(torch.sigmoid(z @ loading + base))


class SurveyVAE(nn.Module):
    def __init__(self, latent=6, width=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(QUESTIONS, width), nn.Tanh())
        self.mu = nn.Linear(width, latent)
        self.logvar = nn.Linear(width, latent)
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, QUESTIONS))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 8)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


def elbo(logits, x, mu, logvar, beta):
    """Evidence lower bound per respondent."""
    fit = -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
    kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).sum(1)
    return (fit - beta * kl).mean()


def validation_error(model, x):
    model.eval()
    with torch.no_grad():
        logits, _, _ = model(x)
    model.train()
    return F.binary_cross_entropy_with_logits(logits, x).item()


def main():
    train, val = survey(4000), survey(800)
    model = SurveyVAE()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(10):
        for x in train[torch.randperm(len(train))].split(125):
            beta = min(1.0, step / 100)
            logits, mu, logvar = model(x)
            objective = elbo(logits, x, mu, logvar, beta)
            opt.zero_grad()
            objective.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
        print(f"epoch {epoch} objective {objective.item():.3f} "
              f"reconstruction {validation_error(model, val):.4f}")
    print("RESULT", validation_error(model, val))


main()
