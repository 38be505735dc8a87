"""Digit-like glyphs with a half precision net; the optimizer works on single precision weights."""
import torch
from torch import nn

torch.manual_seed(18)
torch.set_num_threads(1)


class SinglePrecision:
    def __init__(self, model, make_optimizer, scale=128.0):
        self.model, self.scale = model, scale
        self.weights = nn.ParameterList(p.detach().float() for p in model.parameters())
        self.optimizer = make_optimizer(self.weights)
        self.links = zip(self.weights, model.parameters())

    def backward(self, loss):
        self.model.zero_grad()
        (loss * self.scale).backward()

    @torch.no_grad()
    def step(self):
        for w, p in zip(self.weights, self.model.parameters()):
            w.grad = p.grad.float() / self.scale
        self.optimizer.step()
        for w, p in self.links:
            p.copy_(w)


def glyphs(n):
    g = torch.Generator().manual_seed(1)
    shapes = (torch.rand(8, 36, generator=g) < 0.4).float()
    y = torch.randint(0, 8, (n,))
    return (shapes[y] + 0.5 * torch.randn(n, 36)).half(), y


x, y = glyphs(1024)
xv, yv = glyphs(256)
model = nn.Sequential(nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 8)).half()
trainer = SinglePrecision(model, lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9))
for step in range(90):
    pick = torch.randint(0, len(x), (64,))
    loss = nn.functional.cross_entropy(model(x[pick]).float(), y[pick])
    trainer.backward(loss)
    trainer.step()

with torch.no_grad():
    print("RESULT", float(nn.functional.cross_entropy(model(xv).float(), yv)))
