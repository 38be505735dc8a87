from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Stage:
    length: int
    noise: float
    epochs: int
    lr: float


@dataclass
class Plan:
    stages: list = field(default_factory=lambda: [
        Stage(length=4, noise=0.05, epochs=8, lr=3e-3),
        Stage(length=8, noise=0.1, epochs=8, lr=3e-3),
        Stage(length=14, noise=0.2, epochs=12, lr=2e-3),
    ])
    hidden: int = 32
    samples: int = 1200


def sequences(stage, n):
    """Leaky sum of the gated inputs."""
    x = torch.randn(n, stage.length, 2)
    state = torch.zeros(n)
    for t in range(stage.length):
        state = 0.9 * state + x[:, t, 0] * (x[:, t, 1] > 0)
    return TensorDataset(x, state + stage.noise * torch.randn(n))


class Reader(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.out(h[:, -1])[:, 0]


class Trainer:
    def __init__(self, model):
        self.model = model
        self.best = float("inf")
        self.best_weights = None

    def loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y)

    def validate(self, loader):
        with torch.no_grad():
            return sum(self.loss(b).item() for b in loader) / len(loader)

    def fit(self, train, val, stage):
        opt = torch.optim.Adam(self.model.parameters(), lr=stage.lr)
        for _ in range(stage.epochs):
            for batch in train:
                opt.zero_grad()
                self.loss(batch).backward()
                opt.step()
            score = self.validate(val)
            if score < self.best:
                self.best = score
                self.best_weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        print(f"length {stage.length}: last {score:.4f} best {self.best:.4f}")
        self.model.load_state_dict(self.best_weights)


def main(plan):
    torch.manual_seed(12)
    torch.set_num_threads(1)
    trainer = Trainer(Reader(plan.hidden))
    for stage in plan.stages:
        data = sequences(stage, plan.samples)
        train, val = random_split(data, [plan.samples - 200, 200])
        trainer.fit(DataLoader(train, 50, shuffle=True), DataLoader(val, 200), stage)
    test = DataLoader(sequences(plan.stages[-1], 1000), 500)
    print("RESULT", trainer.validate(test))


main(Plan())
