"""Regression with warmup + cosine, interrupted and resumed once."""
import io

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

torch.set_num_threads(1)


class GradualWarmup(LRScheduler):
    """Linear warmup to the base rate, then hands over to another scheduler."""

    def __init__(self, optimizer, warmup_steps, after):
        self.warmup_steps = warmup_steps
        self.after = after
        self.finished = False
        super().__init__(optimizer)

    def get_lr(self):
        if self.last_epoch >= self.warmup_steps:
            return [g["lr"] for g in self.optimizer.param_groups]
        return [base * (self.last_epoch + 1) / self.warmup_steps for base in self.base_lrs]

    def step(self, epoch=None):
        if self.finished:
            self.after.step()
            self.last_epoch += 1
            self._last_lr = self.after.get_last_lr()
            return
        super().step(epoch)
        if self.last_epoch >= self.warmup_steps:
            self.finished = True


def response(n, seed, noise=0.0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=gen)
    y = torch.sin(1.6 * x[:, 0]) + x[:, 1] * x[:, 2] - 0.6 * x[:, 3].abs()
    return x, (y + noise * torch.randn(n, generator=gen)).unsqueeze(1)


def new_run(cfg):
    model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=0.9)
    cosine = CosineAnnealingLR(optimizer, T_max=cfg["steps"] - cfg["warmup"], eta_min=1e-4)
    scheduler = GradualWarmup(optimizer, cfg["warmup"], cosine)
    return model, optimizer, scheduler


def run(model, optimizer, scheduler, data, start, stop, cfg):
    x, y = data
    gen = torch.Generator().manual_seed(100 + start)
    for step in range(start, stop):
        idx = torch.randint(0, len(x), (cfg["batch"],), generator=gen)
        loss = nn.functional.mse_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        if step % 200 == 199:
            print(f"step {step + 1} loss {loss.item():.4f} rate {scheduler.get_last_lr()[0]:.5f}")


def save(model, optimizer, scheduler, step):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(), "step": step}, buffer)
    return buffer


def resume(buffer, cfg):
    buffer.seek(0)
    checkpoint = torch.load(buffer, weights_only=False)
    model, optimizer, scheduler = new_run(cfg)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    return model, optimizer, scheduler, checkpoint["step"]


def main():
    cfg = {"lr": 0.04, "steps": 1600, "warmup": 100, "batch": 16}
    torch.manual_seed(19)
    train, val = response(4000, 1, noise=0.4), response(1000, 2)
    parts = new_run(cfg)
    run(*parts, train, 0, 300, cfg)
    buffer = save(*parts, step=300)
    *parts, start = resume(buffer, cfg)
    run(*parts, train, start, cfg["steps"], cfg)
    model = parts[0].eval()
    with torch.no_grad():
        print("RESULT", nn.functional.mse_loss(model(val[0]), val[1]).item())


if __name__ == "__main__":
    main()
