# Link prediction on a random graph; the scorer gives probabilities, easy pairs count less.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
NODES = 60


class Objective(nn.Module):
    def __init__(self):
        super().__init__()
        self.measure = nn.BCELoss(reduction="none")

    def weights(self, chance, link):
        return torch.ones_like(link)

    def forward(self, raw, link):
        chance = torch.special.expit(raw)
        each = self.measure(chance, link)
        return (self.weights(chance, link) * each).mean()


class HardPairs(Objective):
    def weights(self, chance, link):
        hit = torch.where(link > 0, chance, 1 - chance)
        return (1 - hit.detach()) ** 0.5


class Scorer(nn.Module):
    def __init__(self, dim=8, width=64):
        super().__init__()
        self.node = nn.Embedding(NODES, dim)
        self.hidden = nn.Linear(dim, width)
        self.out = nn.Linear(width, 1)
        nn.init.normal_(self.node.weight, std=2.0)
        nn.init.normal_(self.out.weight, std=2.0)

    def forward(self, a, b):
        pair = self.node(a) * self.node(b)
        return self.out(torch.relu(self.hidden(pair)))[..., 0]


gen = torch.Generator().manual_seed(2)
side = torch.randn(NODES, 2, generator=gen)
links = ((side @ side.T) > 0).float()
model, objective = Scorer(), HardPairs()
opt = torch.optim.Adam(model.parameters(), lr=5e-2)
for step in range(120):
    a = torch.randint(0, NODES, (256,), generator=gen)
    b = torch.randint(0, NODES, (256,), generator=gen)
    opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(model(a, b), links[a, b])
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
a, b = torch.meshgrid(torch.arange(NODES), torch.arange(NODES), indexing="ij")
with torch.no_grad():
    wrong = ((model(a.flatten(), b.flatten()) > 0).float() != links.flatten()).float().mean()
print("RESULT", wrong.item())
