"""Train a VQ autoencoder with an exponentially averaged codebook; report reconstruction MSE."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(74)


def strokes(n, gen, size=16):
    ax = torch.arange(size).float()
    y, x = torch.meshgrid(ax, ax, indexing="ij")
    imgs = torch.zeros(n, 1, size, size)
    for _ in range(3):
        c = torch.rand(n, 2, 1, 1, generator=gen) * size
        ang = torch.rand(n, 1, 1, generator=gen) * 3.14
        d = (x - c[:, 0]) * ang.sin() - (y - c[:, 1]) * ang.cos()
        imgs[:, 0] += torch.exp(-0.5 * d ** 2) * 0.7
    return imgs.clamp(0, 1)


class Quantize(nn.Module):
    def __init__(self, dim, n_embed, decay=0.95, eps=1e-5):
        super().__init__()
        self.decay, self.eps, self.n_embed = decay, eps, n_embed
        self.register_buffer("embed", torch.zeros(dim, n_embed))
        self.register_buffer("cluster_size", torch.ones(n_embed))
        self.register_buffer("embed_avg", torch.zeros(dim, n_embed))
        self.register_buffer("seeded", torch.tensor(False))

    def seed(self, flat):
        rows = flat[torch.randperm(len(flat))[:self.n_embed]].t()
        self.embed.copy_(rows)
        self.embed_avg.copy_(rows)
        self.seeded.fill_(True)

    def forward(self, x):
        flat = x.reshape(-1, self.embed.shape[0])
        if self.training and not self.seeded:
            self.seed(flat.detach())
        dist = (flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.embed
                + self.embed.pow(2).sum(0, keepdim=True))
        ind = dist.argmin(1)
        onehot = F.one_hot(ind, self.n_embed).type(flat.dtype)
        quant = F.embedding(ind, self.embed.t()).view_as(x)
        if self.training:
            with torch.no_grad():
                self.cluster_size.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
                self.embed_avg.mul_(self.decay).add_(flat.t() @ onehot, alpha=1 - self.decay)
                n = self.cluster_size.sum()
                size = (self.cluster_size + self.eps) / (n + self.n_embed * self.eps) * n
                self.embed.copy_(self.embed_avg / size)
        diff = (quant.detach() - x).pow(2).mean()
        return x + (quant - x).detach(), diff, ind


class VQVAE(nn.Module):
    def __init__(self, ch=24, dim=8, n_embed=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, ch, 4, 2, 1), nn.ReLU(),
                                 nn.Conv2d(ch, ch, 4, 2, 1), nn.ReLU(), nn.Conv2d(ch, dim, 1))
        self.quantize = Quantize(dim, n_embed)
        self.dec = nn.Sequential(nn.Conv2d(dim, ch, 3, 1, 1), nn.ReLU(),
                                 nn.ConvTranspose2d(ch, ch, 4, 2, 1), nn.ReLU(),
                                 nn.ConvTranspose2d(ch, 1, 4, 2, 1))

    def forward(self, x):
        quant, diff, ind = self.quantize(self.enc(x).permute(0, 2, 3, 1))
        return self.dec(quant.permute(0, 3, 1, 2)), diff, ind


def main():
    gen = torch.Generator().manual_seed(3)
    train, val = strokes(600, gen), strokes(150, gen)
    model = VQVAE()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(1, 181):
        x = train[torch.randint(0, 600, (24,))]
        out, latent_loss, ind = model(x)
        recon = F.mse_loss(out, x)
        opt.zero_grad()
        (recon + 0.25 * latent_loss).backward()
        opt.step()
        if step % 30 == 0:
            print(f"step {step} recon {recon.item():.5f} latent {latent_loss.item():.5f} "
                  f"codes {ind.unique().numel()}")
    model.eval()
    with torch.no_grad():
        print("RESULT", F.mse_loss(model(val)[0], val).item(), flush=True)


if __name__ == "__main__":
    main()
