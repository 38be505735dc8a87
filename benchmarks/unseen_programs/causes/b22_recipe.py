"""A small recipe runner: tasks give the loss, the runner does precision, accumulation and clipping."""
from dataclasses import dataclass, field

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


@dataclass
class Recipe:
    steps: int = 350
    accumulate: int = 2
    batch: int = 48
    lr: float = 1.0
    clip: float = 1.0
    scaler: torch.amp.GradScaler = field(
        default_factory=lambda: torch.amp.GradScaler("cpu", init_scale=2.0 ** 9, growth_interval=200))


class Task:
    """Which of eight noisy codes was sent, seen through a nonlinear channel."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.codes = torch.randn(8, 20)
        self.net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))

    def sample(self, n):
        y = torch.randint(0, 8, (n,))
        return torch.tanh(self.codes[y] + 0.9 * torch.randn(n, 20)), y

    def loss(self, batch, scaler=None):
        x, y = batch
        with torch.autocast("cpu", torch.float16):
            logits = self.net(x)
        loss = F.cross_entropy(logits.float(), y)
        return scaler.scale(loss) if scaler is not None else loss


class Runner:
    def __init__(self, recipe):
        self.r = recipe

    def backward(self, loss):
        self.r.scaler.scale(loss / self.r.accumulate).backward()

    def run(self, task):
        opt = torch.optim.SGD(task.net.parameters(), lr=self.r.lr)
        sched = torch.optim.lr_scheduler.ConstantLR(opt, 1.0, 1)
        for step in range(self.r.steps):
            for _ in range(self.r.accumulate):
                self.backward(task.loss(task.sample(self.r.batch), self.r.scaler))
            self.r.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(task.net.parameters(), self.r.clip)
            self.r.scaler.step(opt)
            self.r.scaler.update()
            opt.zero_grad()
            sched.step()
            if step % 70 == 0:
                print(f"step {step} valid {self.validate(task):.4f}")
        return self.validate(task)

    @torch.no_grad()
    def validate(self, task):
        state = torch.get_rng_state()
        torch.manual_seed(1234)
        value = task.loss(task.sample(2000)).item()
        torch.set_rng_state(state)
        return value


if __name__ == "__main__":
    print("RESULT", Runner(Recipe()).run(Task(18)))
