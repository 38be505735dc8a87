"""Half-precision training with a scaler that has to find its scale first."""
import warnings

import torch
import torch.nn as nn

warnings.filterwarnings("ignore", category=UserWarning)
torch.set_num_threads(1)


def heat(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 5, generator=gen) * 2 - 1
    y = torch.exp(-x[:, 0] ** 2) + 0.5 * x[:, 1] * x[:, 2] + 0.3 * torch.sin(3 * x[:, 3])
    return x, y.unsqueeze(1)


class HalfTrainer:
    def __init__(self, model, lr, steps):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.05, total_iters=steps)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=150)
        self.skipped = 0

    def step(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        loss = nn.functional.mse_loss(out.float(), y)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() < before:
            self.skipped += 1
        else:
            self.scheduler.step()
        return loss.item()

    @torch.no_grad()
    def validate(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        return nn.functional.mse_loss(out.float(), y).item()


def main(steps=400):
    torch.manual_seed(40)
    x, y = heat(2000, 1)
    val = heat(500, 2)
    model = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    trainer = HalfTrainer(model, lr=4e-3, steps=steps)
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(x), (32,))
        loss = trainer.step(x[idx], y[idx])
        if step % 80 == 0:
            print(f"step {step} loss {loss:.5f} scale {trainer.scaler.get_scale():.0f} skipped {trainer.skipped}")
    print("RESULT", trainer.validate(*val))


if __name__ == "__main__":
    main()
