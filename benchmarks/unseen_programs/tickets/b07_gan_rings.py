"""Train a GAN on points from noisy rings and report the energy distance of its samples."""
import math
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(8)


def ring_data(n, gen):
    ang = torch.randint(0, 8, (n,), generator=gen) * (2 * math.pi / 8)
    pts = torch.stack([ang.cos(), ang.sin()], 1) * 1.5
    return pts + 0.08 * torch.randn(n, 2, generator=gen)


class GeneratorNet(nn.Module):
    def __init__(self, noise_dim=8, hidden=64):
        super().__init__()
        self.noise_dim = noise_dim
        self.main = nn.Sequential(
            nn.Linear(noise_dim, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, 2))

    def forward(self, z):
        return self.main(z)


class DiscriminatorNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, hidden), nn.LeakyReLU(0.2),
                                  nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
                                  nn.Linear(hidden, 1))

    def forward(self, x):
        return self.main(x).view(-1)


class GAN:
    def __init__(self, lr=1e-3, beta1=0.5):
        self.generator, self.discriminator = GeneratorNet(), DiscriminatorNet()
        self.criterion = nn.BCEWithLogitsLoss()
        self.opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(beta1, 0.999))
        self.opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(beta1, 0.999))

    def step(self, real):
        n = real.size(0)
        ones, zeros = torch.full((n,), 0.95), torch.zeros(n)

        err_real = self.criterion(self.discriminator(real), ones)
        err_real.backward()
        fake = self.generator(torch.randn(n, self.generator.noise_dim))
        err_fake = self.criterion(self.discriminator(fake.detach()), zeros)
        err_fake.backward()
        self.opt_d.step()

        self.generator.zero_grad()
        err_g = self.criterion(self.discriminator(fake), ones)
        err_g.backward()
        self.opt_g.step()
        return (err_real + err_fake).item(), err_g.item()

    @torch.no_grad()
    def sample(self, n):
        self.generator.eval()
        out = self.generator(torch.randn(n, self.generator.noise_dim))
        self.generator.train()
        return out


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean()
            - torch.cdist(b, b).mean()).item()


def main():
    gen = torch.Generator().manual_seed(4)
    heldout = ring_data(1000, gen)
    gan, tail = GAN(), []
    for it in range(1, 401):
        loss_d, loss_g = gan.step(ring_data(256, gen))
        if it > 350 and it % 10 == 0:
            tail.append(energy_distance(gan.sample(1000), heldout))
        if it % 50 == 0:
            print(f"it {it} loss_d {loss_d:.4f} loss_g {loss_g:.4f} "
                  f"energy {energy_distance(gan.sample(500), heldout):.4f}")
    print("RESULT", sum(tail) / len(tail))


if __name__ == "__main__":
    main()
