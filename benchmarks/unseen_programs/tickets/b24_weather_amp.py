"""Train a small weather emulator with fp16 autocast and a gradient scaler; report rollout MSE."""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(58)

DEFAULTS = dict(steps=200, batch_size=16, learning_rate=0.05, weight_decay=1e-5,
                grad_max_norm=1.0, amp=True, init_scale=2.0 ** 14, levels=8, lon=32)


def simulate(n, steps, lon, gen):
    k = torch.arange(1, 5).float()
    grid = torch.arange(lon) * (2 * torch.pi / lon)
    amp = torch.randn(n, 4, 1, generator=gen) / k[None, :, None]
    phase = torch.rand(n, 4, 1, generator=gen) * 6.28
    u = (amp * torch.sin(k[None, :, None] * grid + phase)).sum(1)
    v = torch.roll(u, 3, 1).tanh()
    states = [torch.stack([u, v], 1)]
    for _ in range(steps):
        lap_u = torch.roll(u, 1, 1) + torch.roll(u, -1, 1) - 2 * u
        adv = 0.5 * (torch.roll(u, 1, 1) - torch.roll(u, -1, 1))
        u, v = (u + 0.15 * lap_u + 0.6 * adv + 0.25 * v,
                v + 0.15 * (torch.roll(v, 1, 1) - v) - 0.25 * u + 0.05 * torch.sin(2 * u))
        states.append(torch.stack([u, v], 1))
    return torch.stack(states, 1)


class Emulator(nn.Module):
    def __init__(self, lon, width=96):
        super().__init__()
        self.lon = lon
        self.mix = nn.Sequential(nn.Linear(2 * lon, width), nn.GELU(),
                                 nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, 2 * lon)

    def forward(self, x):
        flat = x.flatten(1)
        return x + self.out(self.mix(flat)).view_as(x)


class Trainer:
    def __init__(self, model, conf):
        self.model, self.conf = model, conf
        self.optimizer = torch.optim.SGD(model.parameters(), lr=conf.learning_rate, momentum=0.9,
                                         nesterov=True, weight_decay=conf.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, conf.steps)
        self.scaler = torch.amp.GradScaler("cpu", enabled=conf.amp, init_scale=conf.init_scale)

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.conf.amp):
            pred = self.model(x)
        loss = F.mse_loss(pred.float(), y)
        self.scaler.scale(loss).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=self.conf.grad_max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        return loss.item(), norm.item()

    @torch.no_grad()
    def rollout_mse(self, trajectory, horizon=4):
        self.model.eval()
        x, total = trajectory[:, 0], 0.0
        for t in range(1, horizon + 1):
            x = self.model(x)
            total += F.mse_loss(x, trajectory[:, t]).item()
        self.model.train()
        return total / horizon


def main():
    parser = argparse.ArgumentParser()
    for key, value in DEFAULTS.items():
        parser.add_argument(f"--{key}", type=type(value), default=value)
    conf = parser.parse_args()
    gen = torch.Generator().manual_seed(3)
    train = simulate(300, 8, conf.lon, gen)
    valid = simulate(80, 5, conf.lon, gen)
    trainer = Trainer(Emulator(conf.lon), conf)
    for step in range(1, conf.steps + 1):
        i = torch.randint(0, train.shape[0], (conf.batch_size,))
        t = torch.randint(0, train.shape[1] - 1, (conf.batch_size,))
        loss, norm = trainer.train_step(train[i, t], train[i, t + 1])
        if step % 40 == 0:
            print(f"step {step} loss {loss:.5f} grad_norm {norm:.3f} "
                  f"scale {trainer.scaler.get_scale():.0f} "
                  f"rollout {trainer.rollout_mse(valid):.5f}")
    print("RESULT", trainer.rollout_mse(valid))


if __name__ == "__main__":
    main()
