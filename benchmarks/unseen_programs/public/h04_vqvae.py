"""Trains a vector-quantised autoencoder with a moving-average codebook on small textures."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(109)


class Quantize(nn.Module):
    def __init__(self, dim, n_embed, decay=0.95, eps=1e-5):
        super().__init__()
        self.dim, self.n_embed, self.decay, self.eps = dim, n_embed, decay, eps
        embed = torch.randn(dim, n_embed)
        self.register_buffer("embed", embed)
        self.register_buffer("cluster_size", torch.zeros(n_embed))
        self.register_buffer("embed_avg", embed.clone())

    def forward(self, x):
        flat = x.reshape(-1, self.dim)
        dist = (flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed
                + self.embed.pow(2).sum(0, keepdim=True))
        ind = (-dist).max(1).indices
        onehot = F.one_hot(ind, self.n_embed).type(flat.dtype)
        quant = F.embedding(ind.view(*x.shape[:-1]), self.embed.t())
        if self.training:
            self.cluster_size.data.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
            total = (flat.t() @ onehot).detach()
            self.embed_avg.data.mul_(self.decay).add_(total, alpha=1 - self.decay)
            n = self.cluster_size.sum()
            size = (self.cluster_size + self.eps) / (n + self.n_embed * self.eps) * n
            self.embed.data.copy_(self.embed_avg / size.unsqueeze(0))
        diff = (quant.detach() - x).pow(2).mean()
        quant = x + (quant - x).detach()
        return quant, diff, ind


class VQVAE(nn.Module):
    def __init__(self, w=24, dim=8, n_embed=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, w, 4, 2, 1), nn.ReLU(), nn.Conv2d(w, w, 4, 2, 1),
                                 nn.ReLU(),
                                 nn.Conv2d(w, dim, 1))
        self.quantize = Quantize(dim, n_embed)
        self.dec = nn.Sequential(nn.Conv2d(dim, w, 3, 1, 1), nn.ReLU(),
                                 nn.ConvTranspose2d(w, w, 4, 2, 1),
                                 nn.ReLU(), nn.ConvTranspose2d(w, 1, 4, 2, 1))

    def forward(self, x):
        quant, diff, ind = self.quantize(self.enc(x).permute(0, 2, 3, 1))
        return self.dec(quant.permute(0, 3, 1, 2)), diff, ind


def textures(n):
    t = torch.linspace(0, 1, 20)
    yy, xx = torch.meshgrid(t, t, indexing="ij")
    a = 3.14 * torch.randint(0, 4, (n, 1, 1)) / 4
    f, p = 6 + 8 * torch.rand(n, 1, 1), 6.28 * torch.rand(n, 1, 1)
    wave = torch.sin(f * (a.cos() * xx + a.sin() * yy) + p)
    return (wave + 0.05 * torch.randn(n, 20, 20)).unsqueeze(1)


train, val = textures(2000), textures(300)
model = VQVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(1, 301):
    model.train()
    img = train[torch.randint(0, len(train), (32,))]
    out, latent_loss, ind = model(img)
    recon_loss = F.mse_loss(out, img)
    loss = recon_loss + 0.25 * latent_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        model.eval()
        with torch.no_grad():
            v_out, v_diff, v_ind = model(val)
            v = F.mse_loss(v_out, val).item()
        print(f"step {step} mse {recon_loss.item():.4f} latent {latent_loss.item():.4f} "
              f"codes used {v_ind.unique().numel()} val mse {v:.4f}")
print("RESULT", round(v, 5))
