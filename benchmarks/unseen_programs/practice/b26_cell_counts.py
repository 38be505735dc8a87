"""Regress cell densities from microscope feature vectors in mixed precision."""
import torch
torch.set_num_threads(1)
torch.manual_seed(220)
import math
from collections import deque
from torch import nn

FEATURES, CHANNELS = 48, 3


def slides(n, seed):
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(CHANNELS, FEATURES, generator=torch.Generator().manual_seed(0))
    density = torch.rand(n, CHANNELS, generator=g)
    x = torch.tanh((density * 2 - 1) @ mix + 0.2 * torch.randn(n, FEATURES, generator=g))
    return x, torch.log1p(density * 3)


class Counter(nn.Module):
    def __init__(self, width=80):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, width), nn.LayerNorm(width), nn.GELU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(CHANNELS))

    def forward(self, x):
        h = self.body(x)
        return torch.cat([head(h) for head in self.heads], 1)


class Trainer:
    def __init__(self, model, train, val, total):
        self.model, self.train, self.val, self.total = model, train, val, total
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True,
                                   weight_decay=1e-5)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1, (s + 1) / 20) * 0.5 * (1 + math.cos(math.pi * s / total)))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
        self.recent = deque(maxlen=25)

    def step(self):
        rows = torch.randint(len(self.train[0]), (96,))
        x, y = self.train[0][rows], self.train[1][rows]
        with torch.autocast("cpu", dtype=torch.float16):
            pred = self.model(x)
        loss = nn.functional.mse_loss(pred.float(), y)
        self.opt.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=1.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.sched.step()
        self.recent.append(loss.item())

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(self.model(self.val[0]), self.val[1]).item()
        self.model.train()
        return error

    def fit(self):
        for step in range(self.total):
            self.step()
            if (step + 1) % 50 == 0:
                mean = sum(self.recent) / len(self.recent)
                print(f"step {step + 1} recent {mean:.5f} val {self.evaluate():.5f}")
        return self.evaluate()


trainer = Trainer(Counter(), slides(4000, 1), slides(800, 2), total=200)
print("RESULT", trainer.fit())
