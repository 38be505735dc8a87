"""Click prediction with embedding tables as a LightningModule in reduced precision."""
import logging

import torch

torch.set_num_threads(1)
torch.manual_seed(17)

import lightning as L
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
USERS, ITEMS = 200, 120


def clicks(n, seed):
    world = torch.Generator().manual_seed(99)
    u_taste = torch.randn(USERS, 4, generator=world)
    i_taste = torch.randn(ITEMS, 4, generator=world)
    g = torch.Generator().manual_seed(seed)
    u = torch.randint(0, USERS, (n,), generator=g)
    i = torch.randint(0, ITEMS, (n,), generator=g)
    hour = torch.rand(n, 1, generator=g)
    score = (u_taste[u] * i_taste[i]).sum(1) + torch.sin(6.28 * hour[:, 0]) - 0.5
    y = (torch.rand(n, generator=g) < torch.sigmoid(2 * score)).float()
    return TensorDataset(u, i, hour, y)


class ClickModel(L.LightningModule):
    def __init__(self, dim=16, lr=5e-3):
        super().__init__()
        self.save_hyperparameters()
        self.users = nn.Embedding(USERS, dim)
        self.items = nn.Embedding(ITEMS, dim)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        self.top = nn.Sequential(nn.Linear(3 * dim + 1, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, u, i, hour):
        a, b = self.users(u), self.items(i)
        return self.top(torch.cat([a, b, a * b, hour.to(a.dtype)], dim=1))[:, 0]

    def training_step(self, batch, batch_idx):
        *features, y = batch
        loss = F.binary_cross_entropy_with_logits(self(*features).float(), y.float())
        if batch_idx % 40 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


@torch.no_grad()
def log_loss(model, data):
    model.eval().float()
    u, i, hour, y = data.tensors
    return F.binary_cross_entropy_with_logits(model(u, i, hour), y).item()


def main():
    train, valid = clicks(12800, 1), clicks(3000, 2)
    loader = DataLoader(train, batch_size=256, shuffle=True)
    model = ClickModel()
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", precision="16-true", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(model, loader)
    print(f"RESULT {log_loss(model, valid):.4f}")


if __name__ == "__main__":
    main()
