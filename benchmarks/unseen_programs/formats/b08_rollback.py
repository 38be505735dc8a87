import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def corrupted_stream(n, seed, bad_fraction):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] * 2 + (x[:, 3] - x[:, 4]).abs() - 0.5 * x[:, 5]
    bad = torch.rand(n, generator=g) < bad_fraction
    y = torch.where(bad, y + 60.0 * torch.randn(n, generator=g).sign(), y)
    return TensorDataset(x, y[:, None])


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.features(x))


class GuardedTrainer:
    """Goes back to the last good weights when a batch blows the loss up."""

    def __init__(self, model, lr=0.02, factor=8.0, every=20):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.factor, self.every = factor, every
        self.level = None
        self.steps = self.rollbacks = 0
        self.remember()

    def remember(self):
        self.good = copy.deepcopy(self.model.state_dict())

    def restore(self):
        self.model.load_state_dict(copy.deepcopy(self.good), assign=True)
        for slot in self.opt.state.values():
            slot["momentum_buffer"].zero_()
        self.rollbacks += 1

    def step(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        value = loss.item()
        if self.level is not None and value > self.factor * self.level:
            self.restore()
            return value
        self.level = value if self.level is None else 0.95 * self.level + 0.05 * value
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self.remember()
        return value


@torch.no_grad()
def test(model, data):
    x, y = data.tensors
    return nn.functional.mse_loss(model(x), y).item()


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    train = DataLoader(corrupted_stream(4000, 1, 0.0006), batch_size=32, shuffle=True)
    clean = corrupted_stream(2000, 2, 0.0)
    trainer = GuardedTrainer(Regressor())
    for epoch in range(10):
        for x, y in train:
            trainer.step(x, y)
        print(f"epoch {epoch} test {test(trainer.model, clean):.4f} rollbacks {trainer.rollbacks}")
    print("RESULT", test(trainer.model, clean))


main()
