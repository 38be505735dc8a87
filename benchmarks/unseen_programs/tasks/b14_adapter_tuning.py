"""Adapts a pretrained network to a new sensor with low-rank adapters."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(47)

INPUTS, WIDTH = 12, 64


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus a low-rank update; merged for fast inference."""

    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.weight = nn.Parameter(base.weight.detach().clone(), requires_grad=False)
        self.bias = nn.Parameter(base.bias.detach().clone(), requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        self.merged = False

    def update(self):
        return self.scale * (self.up @ self.down)

    def train(self, mode=True):
        super().train(mode)
        if not mode and not self.merged:
            self.weight.data += self.update().detach()
            self.merged = True
        elif mode and self.merged:
            self.merged = False
        return self

    def forward(self, x):
        out = F.linear(x, self.weight, self.bias)
        if not self.merged:
            out = out + self.scale * F.linear(F.linear(x, self.down), self.up)
        return out


def signal(x, shift):
    wave = torch.sin(x[:, :3].sum(1) + shift) + 0.5 * x[:, 3] * x[:, 4]
    return wave + shift * torch.cos(x[:, 5] - x[:, 6])


def sample(n, shift, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, INPUTS, generator=g)
    return x, signal(x, shift) + 0.05 * torch.randn(n, generator=g)


def network():
    return nn.Sequential(
        nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
        nn.Linear(WIDTH, 1), nn.Flatten(0))


def evaluate(net, x, y):
    net.eval()
    with torch.no_grad():
        value = F.mse_loss(net(x), y).item()
    net.train()
    return value


def fit(net, data, val, epochs, lr, tag):
    x, y = data
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
    for epoch in range(epochs):
        for pick in torch.randperm(len(x)).split(80):
            loss = F.mse_loss(net(x[pick]), y[pick])
            opt.zero_grad()
            loss.backward()
            opt.step()
        score = evaluate(net, *val)
        print(f"{tag} epoch {epoch} train {loss.item():.4f} val {score:.4f}")
    return score


net = network()
fit(net, sample(2000, 0.0, 1), sample(500, 0.0, 2), epochs=8, lr=3e-3, tag="pretrain")
for i, layer in enumerate(net):
    if isinstance(layer, nn.Linear):
        net[i] = AdaptedLinear(layer)
print("RESULT", fit(net, sample(1600, 0.9, 3), sample(500, 0.9, 4), 14, 5e-3, "adapt"))
