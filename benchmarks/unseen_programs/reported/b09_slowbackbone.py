"""Classifier whose encoder should move more slowly than its head (gradient factor on the encoder)."""
import torch
from torch import nn
from torch.nn import functional as F


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 8, generator=g) * 2 - 1
    code = torch.sign(x[:, 0] * x[:, 1]).clamp(min=0) + 2 * torch.sign(x[:, 2] * x[:, 3]).clamp(min=0)
    return x, code.long()


class Encoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.l1 = nn.Linear(8, width)
        self.l2 = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.l2(torch.tanh(self.l1(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


class Engine:
    def __init__(self, model, lr=0.3, factor=0.5):
        self.model = model
        self.factor = factor
        self.optim = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def dampen_encoder(self):
        for p in self.model.encoder.parameters():
            p.register_hook(lambda g: g * self.factor)

    def epoch(self, x, y, batch=50):
        self.model.train()
        self.dampen_encoder()
        order = torch.randperm(len(x))
        for idx in order.split(batch):
            loss = F.cross_entropy(self.model(x[idx]), y[idx])
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
        return loss.item()

    @torch.inference_mode()
    def error(self, x, y):
        self.model.eval()
        return (self.model(x).argmax(1) != y).float().mean().item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(4)
    train, val = make_split(2000, 10), make_split(800, 11)
    engine = Engine(Classifier())
    for epoch in range(40):
        last = engine.epoch(*train)
        if epoch % 5 == 4:
            print(f"{epoch + 1:3d} loss {last:.3f} val error {engine.error(*val):.3f}")
    print(f"RESULT {engine.error(*val):.4f}")


main()
