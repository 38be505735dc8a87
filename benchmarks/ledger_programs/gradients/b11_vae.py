import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(8)
torch.set_num_threads(1)
D, L = 32, 4
basis = torch.randn(L, D)


def batch(n):
    z = torch.randn(n, L)
    return torch.tanh(z @ basis * 0.5) + 0.05 * torch.randn(n, D)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(D, 64), nn.ELU(), nn.Linear(64, 2 * L))
        self.decoder = nn.Sequential(nn.Linear(L, 64), nn.ELU(), nn.Linear(64, D))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def elbo(x, out):
    rec, mu, logvar = out
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(-1).mean()
    return F.mse_loss(rec, x, reduction="sum") / len(x) + 0.05 * kl


vae = VAE()
optimizers = {
    "encoder": torch.optim.Adam(vae.encoder.parameters(), lr=1e-3),
    "decoder": torch.optim.Adam(vae.decoder.parameters(), lr=3e-3),
}

for it in range(500):
    x = batch(128)
    loss = elbo(x, vae(x))
    loss.backward()
    for opt in optimizers.values():
        opt.step()
        vae.zero_grad()
    if it % 100 == 0:
        print(f"it {it} -elbo {loss.item():.3f}")

vae.eval()
with torch.no_grad():
    x = batch(1000)
    mu = vae.encoder(x).chunk(2, -1)[0]
    print(f"result: {F.mse_loss(vae.decoder(mu), x).item():.4f}")
