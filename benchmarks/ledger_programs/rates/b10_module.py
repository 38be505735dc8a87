"""Small lightning-like trainer with hooks."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_batch_end(self, trainer):
        pass

    def on_epoch_end(self, trainer):
        pass


class LRSchedule(Callback):
    def on_batch_end(self, trainer):
        trainer.scheduler.step()


class Logger(Callback):
    def __init__(self, every):
        self.every = every

    def on_epoch_end(self, trainer):
        if trainer.epoch % self.every == 0:
            print(f"epoch {trainer.epoch} loss {trainer.loss:.4f} val {trainer.validate():.4f}")


class Trainer:
    def __init__(self, model, train_dl, val, max_epochs, lr, callbacks):
        self.model, self.train_dl, self.val, self.max_epochs = model, train_dl, val, max_epochs
        self.callbacks = callbacks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        total = max_epochs * len(train_dl)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, start_factor=1.0, end_factor=0.0, total_iters=total)

    def training_step(self, batch):
        x, y = batch
        loss = F.l1_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        x, y = self.val
        return F.mse_loss(self.model(x), y).item()

    def fit(self):
        for self.epoch in range(self.max_epochs):
            for batch in self.train_dl:
                self.loss = self.training_step(batch)
                for cb in self.callbacks:
                    cb.on_batch_end(self)
            for cb in self.callbacks:
                cb.on_epoch_end(self)


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, (x[:, :3] * x[:, 3:]).sum(1, keepdim=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dl = DataLoader(TensorDataset(*make(1200, 1)), batch_size=40, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    trainer = Trainer(model, dl, make(800, 2), 16, 1e-3, [LRSchedule(), Logger(4)])
    trainer.fit()
    print(f"result: {trainer.validate():.4f}")
