"""Film ratings from latent factors. The factor tables are kept in 16 bits to save memory."""
import torch
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)
USERS, FILMS, RANK = 300, 200, 8
true_user = torch.randn(USERS, 4)
true_film = torch.randn(FILMS, 4)


def ratings(n):
    u = torch.randint(0, USERS, (n,))
    f = torch.randint(0, FILMS, (n,))
    return u, f, (true_user[u] * true_film[f]).sum(1) / 2 + 0.1 * torch.randn(n)


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, RANK, dtype=torch.float16)
        self.film = nn.Embedding(FILMS, RANK, dtype=torch.float16)
        for table in (self.user, self.film):
            nn.init.normal_(table.weight, std=0.4)

    def forward(self, u, f):
        return (self.user(u).float() * self.film(f).float()).sum(1)


def run(net, opt, steps):
    for step in range(steps):
        u, f, r = ratings(1024)
        loss = (net(u, f) - r).square().mean()
        opt.zero_grad()
        (loss * 64).backward()
        opt.step()
        if step % 40 == 0:
            print(step, loss.item())


net = Factors()
opt = torch.optim.Adagrad(net.parameters(), lr=0.15)
run(net, opt, 150)
u, f, r = ratings(4000)
with torch.no_grad():
    print("RESULT", (net(u, f) - r).square().mean().item())
