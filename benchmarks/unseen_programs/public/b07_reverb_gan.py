"""Trains a conditional GAN that draws reverberation spectrograms from scene embeddings."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)

BANDS, FRAMES, COND, NOISE = 12, 16, 6, 8
BATCH, STEPS = 32, 300


def reverb_spectra(n, gen):
    """Exponential decays with a room-dependent rate and a granular diffuse tail."""
    room = torch.rand(n, COND, generator=gen)
    rate = 0.5 + 2.0 * room[:, :1, None] + room[:, 1:2, None] * torch.linspace(0, 1, BANDS)[None,
                                                                                            :, None]
    time = torch.linspace(0, 1, FRAMES)[None, None]
    envelope = 1.5 - 1.6 * rate * time
    grain = torch.sign(torch.randn(n, BANDS, FRAMES, generator=gen))
    depth = 0.25 + 0.35 * room[:, 2:3, None]
    spec = envelope + depth * grain + 0.05 * torch.randn(n, BANDS, FRAMES, generator=gen)
    return spec / 2.0, room


class Generator(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(COND + BANDS * NOISE, width), nn.LeakyReLU(0.2),
            nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, BANDS * FRAMES))
        self.grain = nn.Sequential(nn.Conv2d(2, 16, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 1))

    def forward(self, room):
        z = torch.randn(room.shape[0], BANDS * NOISE)
        base = self.net(torch.cat([room, z], 1)).view(-1, 1, BANDS, FRAMES)
        texture = torch.randn_like(base)
        return (base + self.grain(torch.cat([base, texture], 1))).squeeze(1)


class PatchDiscriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.cond = nn.Linear(COND, 4)
        self.net = nn.Sequential(
            nn.Conv2d(5, width, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, spec, room):
        maps = self.cond(room)[:, :, None, None].expand(-1, -1, BANDS, FRAMES)
        return self.net(torch.cat([spec.unsqueeze(1), maps], 1))


class Image2Reverb:
    def __init__(self, l1_weight=0.5):
        self.g, self.d = Generator(), PatchDiscriminator()
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.l1_weight = l1_weight
        self.logged = {}

    def training_step(self, spec, room, optimizer_idx):
        fake_spec = self.g(room)
        if optimizer_idx == 0:
            d_fake = self.d(fake_spec.detach(), room)
            G_loss1 = F.mse_loss(d_fake, torch.ones_like(d_fake))
            G_loss2 = F.l1_loss(F.avg_pool2d(fake_spec.unsqueeze(1), 4),
                                F.avg_pool2d(spec.unsqueeze(1), 4))
            self.logged.update(G_adv=G_loss1.item(), G_l1=G_loss2.item())
            return G_loss1 + self.l1_weight * G_loss2
        d_real, d_fake = self.d(spec, room), self.d(fake_spec.detach(), room)
        D_loss = 0.5 * (F.mse_loss(d_real, torch.ones_like(d_real))
                        + F.mse_loss(d_fake, torch.zeros_like(d_fake)))
        self.logged.update(D=D_loss.item(), D_real_mean=d_real.mean().item())
        return D_loss

    def fit_batch(self, spec, room):
        for idx, opt in enumerate((self.opt_g, self.opt_d)):
            self.opt_g.zero_grad()
            self.opt_d.zero_grad()
            self.training_step(spec, room, idx).backward()
            opt.step()

    @torch.no_grad()
    def distance(self, spec, room, projections):
        """Sliced Wasserstein distance between local patches of real and drawn spectrograms."""
        fake = self.g(room)
        patches = [F.unfold(x.unsqueeze(1), 3, stride=3).transpose(1, 2).reshape(-1, 9)
                   for x in (spec, fake)]
        real, drawn = (torch.sort(p @ projections, dim=0).values for p in patches)
        return (real - drawn).abs().mean().item()


gen = torch.Generator().manual_seed(17)
spec, room = reverb_spectra(2048, gen)
val_spec, val_room = reverb_spectra(400, gen)
projections = F.normalize(torch.randn(9, 48, generator=gen), dim=0)
system = Image2Reverb()
for step in range(1, STEPS + 1):
    idx = torch.randint(0, len(spec), (BATCH,))
    system.fit_batch(spec[idx], room[idx])
    if step % 60 == 0:
        stats = " ".join(f"{k} {v:.3f}" for k, v in system.logged.items())
        print(f"step {step} {stats} swd {system.distance(val_spec, val_room, projections):.4f}")
print("RESULT", round(system.distance(val_spec, val_room, projections), 5))
