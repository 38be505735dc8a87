import random

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(0)
torch.manual_seed(0)

DIM, PER_TASK, TASKS = 24, 3, 4
centres = torch.randn(PER_TASK * TASKS, DIM) * 1.0


def examples(classes, n):
    y = torch.tensor(classes)[torch.randint(0, len(classes), (n,))]
    x = centres[y] + 0.9 * torch.randn(n, DIM)
    return x, y


class IncrementalNet(nn.Module):
    def __init__(self, feat=48):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(DIM, 96), nn.ReLU(), nn.Linear(96, feat), nn.ReLU())
        self.head = nn.Linear(feat, PER_TASK)

    def grow(self, extra):
        old = self.head
        new = nn.Linear(old.in_features, old.out_features + extra)
        with torch.no_grad():
            new.weight[:old.out_features] = old.weight
            new.bias[:old.out_features] = old.bias
        self.head = new

    def forward(self, x):
        return self.head(self.features(x))


class Memory:
    def __init__(self, per_class=40):
        self.per_class, self.x, self.y = per_class, [], []

    def store(self, x, y):
        for c in y.unique():
            keep = (y == c).nonzero().squeeze(1)[:self.per_class]
            self.x.append(x[keep])
            self.y.append(y[keep])

    def draw(self, n):
        if not self.x:
            return None
        x, y = torch.cat(self.x), torch.cat(self.y)
        pick = torch.randint(0, len(x), (n,))
        return x[pick], y[pick]


class Learner:
    def __init__(self):
        self.net = IncrementalNet()
        self.memory = Memory()
        self.seen = []
        self.opt = self.make_optimizer()

    def make_optimizer(self):
        return torch.optim.SGD([
            {"params": self.net.features.parameters(), "lr": 0.001},
            {"params": self.net.head.parameters(), "lr": 0.1},
        ], momentum=0.9, weight_decay=1e-4)

    def learn_task(self, classes, steps=200):
        if self.seen:
            self.net.grow(len(classes))
        self.seen += classes
        x, y = examples(classes, 900)
        self.net.train()
        for step in range(steps):
            pick = torch.randint(0, len(x), (32,))
            xb, yb = x[pick], y[pick]
            old = self.memory.draw(32)
            if old is not None:
                xb, yb = torch.cat([xb, old[0]]), torch.cat([yb, old[1]])
            loss = F.cross_entropy(self.net(xb), yb)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 2.0)
            self.opt.step()
        self.memory.store(x, y)
        return loss.item()

    @torch.no_grad()
    def error(self):
        self.net.eval()
        x, y = examples(self.seen, 1500)
        return (self.net(x).argmax(1) != y).float().mean().item()


learner = Learner()
for t in range(TASKS):
    classes = list(range(t * PER_TASK, (t + 1) * PER_TASK))
    last = learner.learn_task(classes)
    print(f"task {t}: loss {last:.4f} error over {len(learner.seen)} classes {learner.error():.4f}")
print("RESULT", learner.error())
