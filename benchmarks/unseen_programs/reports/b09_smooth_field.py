"""Field regression with a norm-controlled network and averaged weights for evaluation."""
import copy

import torch
import torch.nn as nn
from torch.nn.utils import spectral_norm

torch.set_num_threads(1)


class Field(nn.Module):
    def __init__(self, width=64, depth=5):
        super().__init__()
        self.lift = nn.Linear(3, width)
        self.blocks = nn.ModuleList([spectral_norm(nn.Linear(width, width)) for _ in range(depth)])
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.relu(self.lift(x))
        for block in self.blocks:
            h = self.gain * torch.relu(block(h))
        return self.readout(h).squeeze(-1)


class Averager:
    """Exponential moving average over everything a checkpoint would hold."""

    def __init__(self, model, decay):
        self.decay = decay
        self.frozen = copy.deepcopy(model).eval()
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            if v.is_floating_point():
                self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
            else:
                self.shadow[k].copy_(v)

    def export(self):
        self.frozen.load_state_dict(self.shadow)
        return self.frozen


def observations(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, generator=gen) * 2 - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] * 2 + 0.5 * torch.cos(4 * x[:, 2])
    return x, y + 0.05 * torch.randn(n, generator=gen)


def evaluate(model, x, y):
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item()


def main(steps=400, batch=64):
    torch.manual_seed(9)
    x, y = observations(4000, 1)
    val = observations(1000, 2)
    model = Field()
    ema = Averager(model, decay=0.99)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model.train()
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(x), (batch,))
        loss = nn.functional.mse_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        if step % 100 == 0:
            print(f"step {step} train {loss.item():.4f} val {evaluate(ema.export(), *val):.4f}")
    print("RESULT", evaluate(ema.export(), *val))


if __name__ == "__main__":
    main()
