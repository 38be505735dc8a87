import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(5)

SIDE = 12
LATENT = 4


def blobs(n):
    c = torch.rand(n, 2) * 7 + 2.5
    r = torch.rand(n, 1, 1) * 1.5 + 1.0
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    d2 = (yy - c[:, 0].view(-1, 1, 1)) ** 2 + (xx - c[:, 1].view(-1, 1, 1)) ** 2
    return torch.exp(-d2 / (2 * r ** 2)).flatten(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.loc, self.raw_scale = nn.Linear(64, LATENT), nn.Linear(64, LATENT)

    def forward(self, x):
        h = self.body(x)
        return Independent(Normal(self.loc(h), F.softplus(self.raw_scale(h)) + 1e-3), 1)


class Decoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, SIDE * SIDE))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.register_buffer("zero", torch.zeros(LATENT))
        self.register_buffer("one", torch.ones(LATENT))

    @property
    def prior(self):
        return Independent(Normal(self.zero, self.one), 1)

    def elbo(self, x, beta):
        posterior = self.encoder(x)
        z = posterior.sample()
        log_px = -F.mse_loss(self.decoder(z), x, reduction="none").sum(1) / (2 * 0.1 ** 2)
        kl = kl_divergence(posterior, self.prior)
        return log_px.mean() - beta * kl.mean(), kl.mean()

    def reconstruct(self, x):
        return self.decoder(self.encoder(x).mean)


train_x, val_x = blobs(3000), blobs(400)
loader = DataLoader(TensorDataset(train_x), batch_size=64, shuffle=True)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)

step = 0
for epoch in range(15):
    vae.train()
    for (x,) in loader:
        beta = min(1.0, step / 200)
        elbo, kl = vae.elbo(x, beta)
        opt.zero_grad()
        (-elbo).backward()
        opt.step()
        step += 1
    vae.eval()
    with torch.no_grad():
        rec = F.mse_loss(vae.reconstruct(val_x), val_x).item()
    print(f"epoch {epoch} elbo {elbo.item():.2f} kl {kl.item():.2f} val_rec {rec:.5f}")

with torch.no_grad():
    rel = F.mse_loss(vae.reconstruct(val_x), val_x) / val_x.var(0).mean()
print("RESULT", rel.item())
