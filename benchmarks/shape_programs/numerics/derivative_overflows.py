"""Learn the charges and a soft geometry of small clusters from their electrostatic energy."""
import torch
from torch import nn

torch.manual_seed(4)
torch.set_num_threads(1)
ATOMS, SOFT = 7, 1e-5


def inverse_distance(pos, soft):
    gap = pos.unsqueeze(2) - pos.unsqueeze(1)
    return torch.rsqrt(gap.square().sum(-1) + soft)


def energy(pos, charge, soft=SOFT):
    pair = charge.unsqueeze(2) * charge.unsqueeze(1) * inverse_distance(pos, soft)
    off = 1.0 - torch.eye(ATOMS, dtype=pair.dtype)
    return 0.5 * (pair * off).sum((1, 2))


def clusters(n):
    grid = torch.stack(torch.meshgrid(*[torch.arange(2.0)] * 3, indexing="ij"), -1).view(8, 3)[:ATOMS]
    pos = grid * 1.5 + 0.2 * torch.randn(n, ATOMS, 3)
    kind = torch.randint(0, 3, (n, ATOMS))
    charge = torch.tensor([-1.0, 0.5, 1.0])[kind]
    return pos, kind, energy(pos, charge, 1e-9)


class Cluster(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(3, 3)
        self.charge = nn.Embedding(3, 1)
        nn.init.eye_(self.frame.weight)

    def forward(self, pos, kind):
        where = self.frame(pos)
        return energy(where, self.charge(kind).squeeze(-1).to(where.dtype))


net = Cluster()
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
for step in range(150):
    pos, kind, target = clusters(64)
    with torch.autocast("cpu", torch.float16):
        guess = net(pos, kind)
    loss = (guess.float() - target).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
pos, kind, target = clusters(512)
with torch.no_grad():
    print("RESULT", (net(pos, kind) - target).square().mean().item())
