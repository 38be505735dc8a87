"""Train a GRU that routes support tickets to departments, with small batches per pass."""
import torch
torch.set_num_threads(1)
torch.manual_seed(21)
import math
from dataclasses import dataclass
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    vocab: int = 400
    departments: int = 12
    length: int = 14
    batch: int = 16
    accumulate: int = 4
    epochs: int = 3
    lr: float = 6e-3


def tickets(cfg, n):
    topic = torch.randn(cfg.departments, cfg.vocab) * 1.1
    y = torch.randint(cfg.departments, (n,))
    probs = F.softmax(topic, 1)
    x = torch.multinomial(probs[y], cfg.length, replacement=True)
    return x, y


class Router(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, 32)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, cfg.departments)

    def forward(self, x):
        h, _ = self.gru(self.embed(x))
        return self.head(h.mean(1))


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        x, y = tickets(cfg, 2560)
        self.train_loader = DataLoader(TensorDataset(x[:2048], y[:2048]), cfg.batch, shuffle=True)
        self.val = (x[2048:], y[2048:])
        self.model = Router(cfg)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.updates = len(self.train_loader) // cfg.accumulate * cfg.epochs
        warm = self.updates // 10

        def factor(s):
            if s < warm:
                return (s + 1) / warm
            done = min(1.0, (s - warm) / (self.updates - warm))
            return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))

        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, factor)

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            logits = self.model(self.val[0])
        self.model.train()
        return F.cross_entropy(logits, self.val[1]).item()

    def run(self):
        self.opt.zero_grad()
        for epoch in range(self.cfg.epochs):
            for i, (x, y) in enumerate(self.train_loader):
                loss = F.cross_entropy(self.model(x), y) / self.cfg.accumulate
                loss.backward()
                if (i + 1) % self.cfg.accumulate == 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.opt.step()
                    self.opt.zero_grad()
                self.sched.step()
            print(f"epoch {epoch} val {self.evaluate():.4f} lr {self.sched.get_last_lr()[0]:.5f}")
        return self.evaluate()


print("RESULT", Trainer(Config()).run())
