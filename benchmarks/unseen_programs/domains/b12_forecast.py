import math
from types import SimpleNamespace

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(9)

cfg = SimpleNamespace(history=48, horizon=12, width=32, lr=3e-3, warmup=40, epochs=8, batch=64)


def load_series(n=2400):
    t = torch.arange(n).float()
    daily = torch.sin(2 * math.pi * t / 24)
    weekly = 0.6 * torch.sin(2 * math.pi * t / 168 + 1)
    ar = torch.zeros(n)
    for i in range(1, n):
        ar[i] = 0.8 * ar[i - 1] + 0.15 * torch.randn(1).item()
    return 20 + 5 * (daily + weekly + ar)


class Windows(Dataset):
    def __init__(self, series):
        self.s = series

    def __len__(self):
        return len(self.s) - cfg.history - cfg.horizon

    def __getitem__(self, i):
        j = i + cfg.history
        return self.s[i:j], self.s[j:j + cfg.horizon]


class CausalBlock(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(c, c, 3, dilation=dilation)
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        return x + self.mix(torch.relu(self.conv(self.pad(x))))


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv1d(1, cfg.width, 1)
        self.blocks = nn.Sequential(*[CausalBlock(cfg.width, 2 ** k) for k in range(4)])
        self.head = nn.Linear(cfg.width, cfg.horizon)

    def forward(self, x):
        return self.head(self.blocks(self.inp(x.unsqueeze(1)))[:, :, -1])


def warmup_cosine(total):
    def rate(step):
        if step < cfg.warmup:
            return cfg.lr * (step + 1) / cfg.warmup
        progress = (step - cfg.warmup) / max(1, total - cfg.warmup)
        return cfg.lr * 0.5 * (1 + math.cos(math.pi * progress))
    return rate


def evaluate(model, loader):
    model.eval()
    se = n = 0.0
    with torch.inference_mode():
        for x, y in loader:
            se += (model(x) - y).pow(2).sum().item()
            n += y.numel()
    return se / n


def run():
    series = load_series()
    cut = 1900
    mean, std = series[:cut].mean(), series[:cut].std()
    series = (series - mean) / std
    train = DataLoader(Windows(series[:cut]), cfg.batch, shuffle=True, drop_last=True)
    valid = DataLoader(Windows(series[cut:]), 128)
    model = TCN()
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup_cosine(cfg.epochs * len(train)))
    for epoch in range(cfg.epochs):
        model.train()
        for x, y in train:
            loss = nn.functional.huber_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
        print(f"epoch {epoch} train {loss.item():.4f} valid mse {evaluate(model, valid):.4f}")
    print("RESULT", evaluate(model, valid))


run()
