import itertools

import torch
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(17)
torch.set_num_threads(1)


def load(n):
    z = torch.randn(n, 3)
    w = torch.randn(3, 24, generator=torch.Generator().manual_seed(1))
    x = torch.sin(z @ w) + 0.1 * torch.randn(n, 24)
    y = (z[:, 0] > 0).long() + 2 * (z[:, 1] * z[:, 2] > 0).long()
    return x, y


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


class Model:
    def __init__(self, lr):
        self.encoder = Encoder()
        self.classifier = nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 24))
        self.opt_sup = optim.SGD(itertools.chain(self.encoder.parameters(), self.classifier.parameters()), lr=lr, momentum=0.9)
        self.opt_rec = optim.SGD(itertools.chain(self.encoder.parameters(), self.decoder.parameters()), lr=lr, momentum=0.9)

    def fit_batch(self, x, y):
        self.opt_sup.zero_grad()
        self.opt_rec.zero_grad()
        h = self.encoder(x)
        sup = F.cross_entropy(self.classifier(h), y)
        rec = F.mse_loss(self.decoder(h), x)
        (sup + 2.0 * rec).backward()
        self.opt_sup.step()
        self.opt_rec.step()
        return sup.item(), rec.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        h = self.encoder(x)
        return (F.cross_entropy(self.classifier(h), y) + F.mse_loss(self.decoder(h), x)).item()


x, y = load(1024)
xv, yv = load(512)
m = Model(lr=0.25)
for epoch in range(12):
    order = torch.randperm(1024).split(64)
    for idx in order:
        s, r = m.fit_batch(x[idx], y[idx])
    if epoch % 3 == 0:
        print(f"epoch {epoch}: sup {s:.3f} rec {r:.3f} val {m.evaluate(xv, yv):.3f}")
print(f"result: {m.evaluate(xv, yv):.4f}")
