"""Train a small super-resolution GAN on procedural textures and report the validation MSE."""
import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--upscale-factor", type=int, default=2)
args = parser.parse_args()


def textures(n, gen, size=24):
    ax = torch.linspace(0, 1, size)
    yy, xx = torch.meshgrid(ax, ax, indexing="ij")
    out = []
    for _ in range(n):
        p = torch.rand(9, generator=gen)
        ang = p[0] * math.pi
        wave = torch.sin((6 + 22 * p[1]) * (xx * ang.cos() + yy * ang.sin()) + 6.28 * p[2])
        disk = ((xx - p[3]) ** 2 + (yy - p[4]) ** 2 < (0.1 + 0.25 * p[5]) ** 2).float()
        base = 0.5 + 0.25 * wave * (1 - disk) + 0.3 * disk * (p[6] - 0.5)
        out.append(torch.stack([base, base * (0.6 + 0.4 * p[7]), base * (0.6 + 0.4 * p[8])]))
    return torch.stack(out).clamp(0, 1)


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.PReLU(),
                                  nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c))

    def forward(self, x):
        return x + self.body(x)


class Generator(nn.Module):
    def __init__(self, scale, c=12):
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, c, 5, padding=2), nn.PReLU())
        self.trunk = nn.Sequential(ResidualBlock(c))
        self.up = nn.Sequential(nn.Conv2d(c, c * scale ** 2, 3, padding=1),
                                nn.PixelShuffle(scale), nn.PReLU())
        self.tail = nn.Conv2d(c, 3, 5, padding=2)

    def forward(self, lr):
        x = self.head(lr)
        return torch.sigmoid(self.tail(self.up(x + self.trunk(x))))


class Discriminator(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, c, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(c, 2 * c, 3, stride=2, padding=1), nn.BatchNorm2d(2 * c), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 2 * c, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(2 * c * 9, 1))

    def forward(self, x):
        return self.net(x)


@torch.no_grad()
def validate(netG, hr):
    netG.eval()
    mse = F.mse_loss(netG(F.avg_pool2d(hr, args.upscale_factor)), hr).item()
    netG.train()
    return mse


gen = torch.Generator().manual_seed(0)
train_hr, val_hr = textures(120, gen), textures(40, gen)
netG, netD = Generator(args.upscale_factor), Discriminator()
optimizerG = torch.optim.Adam(netG.parameters(), lr=args.lr, betas=(0.9, 0.999))
optimizerD = torch.optim.Adam(netD.parameters(), lr=args.lr / 4, betas=(0.9, 0.999))
schedulerG = torch.optim.lr_scheduler.StepLR(optimizerG, step_size=args.epochs // 2, gamma=0.1)
schedulerD = torch.optim.lr_scheduler.StepLR(optimizerD, step_size=args.epochs // 2, gamma=0.1)
adversarial = nn.BCEWithLogitsLoss()

for epoch in range(args.epochs):
    log_d = log_g = 0.0
    batches = torch.randperm(len(train_hr)).split(args.batch_size)
    for idx in batches:
        hr = train_hr[idx]
        lr = F.avg_pool2d(hr, args.upscale_factor)
        real, fake = torch.ones(len(hr), 1), torch.zeros(len(hr), 1)

        optimizerD.zero_grad()
        sr = netG(lr)
        errD = adversarial(netD(hr), real) + adversarial(netD(sr.detach()), fake)
        errD.backward()
        optimizerD.step()

        optimizerG.zero_grad()
        content_loss = F.mse_loss(sr, hr)
        errG = content_loss + 1e-3 * adversarial(netD(sr), real)
        errG.backward()
        optimizerG.step()

        schedulerD.step()
        schedulerG.step()
        log_d += errD.item()
        log_g += content_loss.item()
    mse = validate(netG, val_hr)
    print(f"[{epoch + 1}/{args.epochs}] Loss_D {log_d / len(batches):.4f} "
          f"content {log_g / len(batches):.5f} val_psnr {-10 * math.log10(mse):.2f}")

print("RESULT", validate(netG, val_hr))
