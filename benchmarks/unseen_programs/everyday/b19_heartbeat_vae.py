"""Train a variational autoencoder of heartbeats whose stages are checkpointed to save memory."""
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(1919)

SAMPLES, LATENT, WIDTH = 64, 6, 96


def heartbeats(n):
    """P wave, QRS complex and T wave with varying places, widths and heights."""
    t = torch.linspace(0, 1, SAMPLES)
    beat = torch.zeros(n, SAMPLES)
    shift = 0.04 * torch.randn(n, 1)
    stretch = 1 + 0.08 * torch.randn(n, 1)
    for place, width, height, spread in [(0.2, 0.04, 0.3, 0.15), (0.38, 0.015, -0.4, 0.2),
                                         (0.42, 0.02, 2.0, 0.4), (0.47, 0.018, -0.6, 0.2),
                                         (0.7, 0.07, 0.6, 0.3)]:
        h = height * (1 + spread * torch.randn(n, 1))
        c = 0.42 + (place - 0.42) * stretch + shift
        beat = beat + h * torch.exp(-0.5 * ((t - c) / width) ** 2)
    return beat + 0.05 * torch.randn(n, SAMPLES)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SAMPLES, WIDTH), nn.SiLU(),
                                  nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.mu = nn.Linear(WIDTH, LATENT)
        self.log_var = nn.Linear(WIDTH, LATENT)

    def forward(self, x):
        h = self.body(x)
        mu, log_var = self.mu(h), self.log_var(h).clamp(-10, 6)
        z = mu + torch.exp(0.5 * log_var) * torch.randn_like(mu)
        return z, mu, log_var


class HeartVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = nn.Sequential(nn.Linear(LATENT, WIDTH), nn.SiLU(),
                                     nn.Linear(WIDTH, WIDTH), nn.SiLU(),
                                     nn.Linear(WIDTH, SAMPLES))

    def run_stage(self, stage, *inputs):
        if self.training:
            return checkpoint(stage, *inputs, use_reentrant=False, preserve_rng_state=False)
        return stage(*inputs)

    def forward(self, x):
        z, mu, log_var = self.run_stage(self.encoder, x)
        return self.run_stage(self.decoder, z), mu, log_var


def negative_elbo(output, x, noise_std=0.15):
    recon, mu, log_var = output
    nll = 0.5 * ((recon - x) / noise_std).pow(2).sum(1)
    kl = 0.5 * (mu.pow(2) + log_var.exp() - 1 - log_var).sum(1)
    return (nll + kl).mean()


def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        value = negative_elbo(model(x), x).item()
    model.train()
    return value


def main():
    train, val = heartbeats(4000), heartbeats(800)
    model = HeartVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps = 400
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for step in range(1, steps + 1):
        x = train[torch.randint(0, len(train), (96,))]
        loss = negative_elbo(model(x), x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        optimizer.step()
        scheduler.step()
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.3f} val {evaluate(model, val):.3f}")
    print(f"RESULT {evaluate(model, val):.5f}")


if __name__ == "__main__":
    main()
