"""Sharpness-aware minimisation in a LightningModule with manual optimization."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(26)

import lightning as L
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def spirals(n, seed, arms=3):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, arms, (n,), generator=g)
    r = 0.1 + 0.9 * torch.rand(n, generator=g)
    angle = 4 * r + y * 2 * torch.pi / arms + 0.12 * torch.randn(n, generator=g)
    return torch.stack([r * angle.cos(), r * angle.sin()], dim=1), y


class SamSpirals(L.LightningModule):
    def __init__(self, rho=0.03, lr=0.05, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 3),
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        opt, sched = self.optimizers(), self.lr_schedulers()
        params = [p for p in self.net.parameters() if p.requires_grad]

        loss = F.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in params]).norm() + 1e-12
            shift = [self.hparams.rho * p.grad / norm for p in params]
            for p, e in zip(params, shift):
                p.add_(e)
        opt.zero_grad()

        self.manual_backward(F.cross_entropy(self.net(x), y))
        with torch.no_grad():
            for p, e in zip(params, shift):
                p.sub_(e)
        opt.step()
        opt.zero_grad()
        sched.step()
        self.log("loss", loss, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, nesterov=True)
        steps = self.trainer.estimated_stepping_batches
        return [opt], [torch.optim.lr_scheduler.OneCycleLR(opt, 0.3, total_steps=steps)]


def main():
    loader = DataLoader(TensorDataset(*spirals(1600, 1)), batch_size=64, shuffle=True)
    model = SamSpirals()
    trainer = L.Trainer(
        max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, loader)
    x, y = spirals(800, 2)
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model.net(x), y).item()
    print(f"RESULT {loss:.4f}")


if __name__ == "__main__":
    main()
