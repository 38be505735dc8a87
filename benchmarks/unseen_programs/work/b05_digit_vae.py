"""Variational autoencoder of stroke pictures, trained epoch by epoch in fp16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

SIDE, LATENT = 12, 6


def stroke_pictures(n, gen):
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    angle = 3.1416 * torch.rand(n, 1, 1, generator=gen)
    shift = 4 * (torch.rand(n, 1, 1, generator=gen) - 0.5)
    width = 0.8 + torch.rand(n, 1, 1, generator=gen)
    x, y = xx[None] - SIDE / 2, yy[None] - SIDE / 2
    d = x * torch.cos(angle) + y * torch.sin(angle) - shift
    ink = torch.exp(-0.5 * (d / width) ** 2)
    ring = torch.exp(-0.5 * (((x ** 2 + y ** 2).sqrt() - 3 - shift.abs()) / 0.8) ** 2)
    is_ring = (torch.rand(n, 1, 1, generator=gen) < 0.4).float()
    pics = is_ring * ring + (1 - is_ring) * ink
    return (pics + 0.03 * torch.randn(pics.shape, generator=gen)).clamp(0, 1).flatten(1)


class VAE(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        d = SIDE * SIDE
        self.enc = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 2 * LATENT))
        self.dec = nn.Sequential(nn.Linear(LATENT, width), nn.ReLU(), nn.Linear(width, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=-1)
        mu, logvar = mu.float(), logvar.float().clamp(-8, 4)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


def negative_elbo(logits, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="sum")
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum()
    return rec + kl


class EpochTrainer:
    def __init__(self, model, lr, batch):
        self.model, self.batch = model, batch
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.scaler = torch.amp.GradScaler("cpu")
        self.gen = torch.Generator().manual_seed(0)

    def batches(self, data):
        order = torch.randperm(len(data), generator=self.gen)
        for chunk in order.split(self.batch):
            yield data[chunk]

    def run_epoch(self, data):
        self.model.train()
        self.scaler = torch.amp.GradScaler("cpu")
        total = 0.0
        for x in self.batches(data):
            self.opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits, mu, logvar = self.model(x)
            loss = negative_elbo(logits, x, mu, logvar)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            total += loss.item()
        return total / len(data)

    @torch.no_grad()
    def validate(self, data):
        self.model.eval()
        logits, mu, logvar = self.model(data)
        return negative_elbo(logits, data, mu, logvar).item() / len(data)


gen = torch.Generator().manual_seed(17)
train_set, val_set = stroke_pictures(800, gen), stroke_pictures(300, gen)
trainer = EpochTrainer(VAE(), lr=2e-3, batch=64)
for epoch in range(24):
    train_loss = trainer.run_epoch(train_set)
    if epoch % 6 == 5:
        print(
            f"epoch {epoch + 1} train {train_loss:.2f} val {trainer.validate(val_set):.2f}"
            f" scale {trainer.scaler.get_scale():.0f}"
        )
print(f"RESULT {trainer.validate(val_set):.4f}")
