# Deflection model (metres): a fixed random encoder in half precision, a full precision head on top.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, inputs=6, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.requires_grad_(False)

    def forward(self, x):
        return self.net(x)


class Head(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, h):
        with torch.autocast("cpu", enabled=False):
            return 1e-4 * self.net(h.float())[:, 0]


class Beam:
    def __init__(self, lr=1e-2):
        self.encoder, self.head = Encoder(), Head()
        self.opt = torch.optim.Adam(self.head.parameters(), lr=lr, eps=1e-20)

    def predict(self, x):
        return self.head(self.encoder(x))

    @torch.autocast("cpu", torch.float16)
    def training_step(self, x, y):
        loss = nn.functional.mse_loss(self.predict(x), y)
        loss.backward()
        return loss

    def fit(self, batches):
        for step, (x, y) in enumerate(batches):
            self.opt.zero_grad()
            loss = self.training_step(x, y)
            self.opt.step()
            if step % 30 == 0:
                print(step, loss.item())


def loads(n, batch, gen):
    for _ in range(n):
        x = torch.randn(batch, 6, generator=gen)
        yield x, 1e-4 * (torch.sin(x[:, 0]) + 0.5 * x[:, 1])


gen = torch.Generator().manual_seed(1)
beam = Beam()
beam.fit(loads(120, 64, gen))
x, y = next(loads(1, 500, gen))
with torch.no_grad():
    print("RESULT", 1e8 * nn.functional.mse_loss(beam.predict(x), y).item())
