"""Fits a tabular regression with a network that uses its own smooth activation function."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)


class Softsquare(torch.autograd.Function):
    """x * |x| / (1 + |x|): like a square near zero, and like a line far away."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        size = x.abs()
        return x * size / (1 + size)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        size = x.abs()
        slope = size * (2 + size) / (1 + size) ** 2
        return slope


class Activation(nn.Module):
    def forward(self, x):
        return Softsquare.apply(x) + 0.1 * x


class Regressor(nn.Module):
    def __init__(self, inputs, width=64):
        super().__init__()
        self.inputs = nn.Linear(inputs, width)
        self.first = Activation()
        self.middle = nn.Linear(width, width)
        self.second = Activation()
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.first(self.inputs(x))
        h = self.second(self.middle(h))
        return self.out(h).squeeze(-1)


def houses(n, gen):
    x = torch.randn(n, 8, generator=gen)
    price = (x[:, 0] * x[:, 1] + 1.5 * x[:, 2].abs() + 0.8 * x[:, 3]
             - x[:, 4] * x[:, 5] + 0.2 * torch.randn(n, generator=gen))
    return x, (price - 1.2) / 1.9


gen = torch.Generator().manual_seed(3)
train_x, train_y = houses(4096, gen)
val_x, val_y = houses(1024, gen)
model = Regressor(8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
for epoch in range(10):
    total = 0.0
    for chunk in torch.randperm(len(train_x)).split(128):
        loss = F.mse_loss(model(train_x[chunk]), train_y[chunk])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += loss.item() * len(chunk)
    with torch.no_grad():
        val = F.mse_loss(model(val_x), val_y).item()
    print(f"epoch {epoch} loss {total / len(train_x):.4f} val {val:.4f}")
print("RESULT", round(val, 4))
