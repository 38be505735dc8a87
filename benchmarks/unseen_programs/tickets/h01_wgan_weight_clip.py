"""Train a WGAN with clipped critic weights on a spiral and report the energy distance."""
import math
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(3)


def spiral(n, gen):
    t = torch.rand(n, generator=gen).sqrt() * 2.2 * math.pi
    pts = torch.stack([t.cos(), t.sin()], 1) * (t / 6.0)[:, None] * 1.5
    return pts + 0.03 * torch.randn(n, 2, generator=gen)


class Generator(nn.Module):
    def __init__(self, nz=4, h=64):
        super().__init__()
        self.nz = nz
        self.main = nn.Sequential(nn.Linear(nz, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(),
                                  nn.Linear(h, 2))

    def forward(self, z):
        return self.main(z)


class Critic(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, h), nn.LeakyReLU(0.2), nn.Linear(h, h),
                                  nn.LeakyReLU(0.2), nn.Linear(h, 1))

    def forward(self, x):
        return self.main(x).mean(0).view(1)


def energy(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean()
            - torch.cdist(b, b).mean()).item()


def main():
    gen = torch.Generator().manual_seed(1)
    heldout = spiral(800, gen)
    netG, netD = Generator(), Critic()
    optG = torch.optim.RMSprop(netG.parameters(), lr=2e-3)
    optD = torch.optim.RMSprop(netD.parameters(), lr=2e-3)
    one, mone = torch.FloatTensor([1]), torch.FloatTensor([-1])
    clamp, tail = 0.1, []

    for it in range(1, 251):
        for p in netD.parameters():
            p.requires_grad = True
        for _ in range(10 if it < 10 else 4):
            for p in netD.parameters():
                p.data.clamp_(-clamp, clamp)
            netD.zero_grad()
            errD_real = netD(spiral(128, gen))
            errD_real.backward(one)
            with torch.no_grad():
                fake = netG(torch.randn(128, netG.nz))
            errD_fake = netD(fake)
            errD_fake.backward(mone)
            errD = errD_real - errD_fake
            optD.step()

        for p in netD.parameters():
            p.requires_grad = False
        netG.zero_grad()
        errG = netD(netG(torch.randn(128, netG.nz)))
        errG.backward(one)
        optG.step()
        if it % 50 == 0:
            print(f"[{it}] Loss_D {errD.item():.5f} Loss_G {errG.item():.5f}")
        if it > 200 and it % 10 == 0:
            with torch.no_grad():
                tail.append(energy(netG(torch.randn(800, netG.nz)), heldout))
    print("RESULT", sum(tail) / len(tail))


if __name__ == "__main__":
    main()
