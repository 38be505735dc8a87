"""Film ratings: compact factor tables, biases in a second optimizer."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
PEOPLE, FILMS, RANK = 80, 60, 6
liking = torch.randn(PEOPLE, 2) @ torch.randn(2, FILMS)


def ratings(n, g):
    person = torch.randint(0, PEOPLE, (n,), generator=g)
    film = (torch.rand(n, generator=g) ** 2 * FILMS).long()
    return person, film, liking[person, film] + 3 + 0.1 * torch.randn(n, generator=g)


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.person = nn.Embedding(PEOPLE, RANK, dtype=torch.float16)
        self.film = nn.Embedding(FILMS, RANK, dtype=torch.float16)
        for table in (self.person, self.film):
            nn.init.normal_(table.weight, std=0.5)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, person, film):
        a, b = self.person(person).float(), self.film(film).float()
        return (a * b).sum(-1) + self.offset


def make_optimizers(model):
    tables = [model.person.weight, model.film.weight]
    return [torch.optim.Adagrad(tables, lr=0.3),
            torch.optim.SGD([model.offset], lr=0.3)]


g = torch.Generator().manual_seed(15)
model = Tables()
optimizers = make_optimizers(model)
for step in range(150):
    person, film, stars = ratings(128, g)
    loss = (model(person, film) - stars).pow(2).mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()

with torch.no_grad():
    person, film, stars = ratings(1000, g)
    print("RESULT", (model(person, film) - stars).pow(2).mean().item())
