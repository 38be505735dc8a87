import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(140)

FILMS, TASTES = 60, 5


def ratings(n):
    films = torch.randn(TASTES, FILMS, generator=torch.Generator().manual_seed(1))
    people = torch.randn(n, TASTES)
    return people @ films / TASTES ** 0.5 + 0.1 * torch.randn(n, FILMS)


class Filler(nn.Module):
    """Guesses all ratings of a person from the ones that are there."""

    def __init__(self):
        super().__init__()
        self.hide = nn.Dropout(0.7)
        self.inner = nn.Sequential(nn.Linear(FILMS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.outer = nn.Linear(128, FILMS)

    def forward(self, rows):
        return self.outer(self.inner(self.hide(rows)))


def describe(net, example):
    """Prints the size of each layer's output."""
    hooks = []
    for name, part in net.named_modules():
        if not list(part.children()):
            hooks.append(part.register_forward_hook(
                lambda m, i, o, name=name: print(f"{name:12s} {type(m).__name__:10s} {tuple(o.shape)}")))
    net.eval()
    with torch.no_grad():
        net(example)
    for hook in hooks:
        hook.remove()


def fit(net, rows, epochs):
    optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(rows)).split(50):
            loss = (net(rows[index]) - rows[index]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / (len(rows) / 50):.3f}")


net = Filler()
describe(net, ratings(2))
fit(net, ratings(800), 9)

net.eval()
rows = ratings(300)
there = torch.rand_like(rows) < 0.3
with torch.no_grad():
    guess = net(rows * there / 0.3)
print("RESULT", (guess - rows)[~there].square().mean().item())
