"""Hinge GAN on a ring of Gaussians as a LightningModule with two optimizers."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(4)

import lightning as L
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def ring(n, modes=8, sigma=0.08, seed=0):
    g = torch.Generator().manual_seed(seed)
    angle = torch.randint(0, modes, (n,), generator=g) * 2 * torch.pi / modes
    centre = torch.stack([angle.cos(), angle.sin()], dim=1)
    return centre + sigma * torch.randn(n, 2, generator=g)


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean()
            - torch.cdist(b, b).mean()).item()


def mlp(n_in, n_out, width=96):
    return nn.Sequential(
        nn.Linear(n_in, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, n_out),
    )


class RingGAN(L.LightningModule):
    def __init__(self, latent=8, lr_g=3e-4, lr_d=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = mlp(latent, 2)
        self.discriminator = mlp(2, 1)

    def forward(self, z):
        return self.generator(z)

    def noise(self, n):
        return torch.randn(n, self.hparams.latent, device=self.device)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        opt_g.zero_grad()
        opt_d.zero_grad()

        fake_score = self.discriminator(self(self.noise(len(real))))
        g_loss = -fake_score.mean()
        self.manual_backward(g_loss)
        opt_g.step()

        fake = self(self.noise(len(real))).detach()
        d_loss = F.relu(1 - self.discriminator(real)).mean()
        d_loss = d_loss + F.relu(1 + self.discriminator(fake)).mean()
        self.manual_backward(d_loss)
        opt_d.step()
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss})

    def on_train_epoch_end(self):
        m = self.trainer.callback_metrics
        if self.current_epoch % 5 == 4:
            print(f"epoch {self.current_epoch} g {m['g_loss']:.3f} d {m['d_loss']:.3f}")

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), self.hparams.lr_g, betas=(0.5, 0.9))
        opt_d = torch.optim.Adam(
            self.discriminator.parameters(), self.hparams.lr_d, betas=(0.5, 0.9)
        )
        return opt_g, opt_d


def main():
    loader = DataLoader(TensorDataset(ring(2560)), batch_size=128, shuffle=True, drop_last=True)
    model = RingGAN()
    trainer = L.Trainer(
        max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, loader)
    with torch.no_grad():
        samples = model(torch.randn(1000, model.hparams.latent))
    print(f"RESULT {energy_distance(samples, ring(1000, seed=1)):.4f}")


if __name__ == "__main__":
    main()
