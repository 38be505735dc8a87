"""Predicts the total charge response of atoms from their bonded neighbours."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(83)

ATOM_TYPES = 5


class Molecules:
    """Random bonded graphs, joined into one big graph for each batch."""

    def __init__(self, n, seed, atoms=9):
        self.g = torch.Generator().manual_seed(seed)
        self.atoms = atoms
        self.items = [self._one() for _ in range(n)]

    def _one(self):
        kind = torch.randint(0, ATOM_TYPES, (self.atoms,), generator=self.g)
        bonded = torch.rand(self.atoms, self.atoms, generator=self.g) < 0.35
        bonded = torch.triu(bonded, 1)
        bonded = bonded | bonded.T
        strength = torch.tensor([-1.0, -0.4, 0.3, 0.8, 1.4])[kind]
        pull = bonded.float() @ strength
        target = torch.tanh(0.5 * pull) * (1 + 0.5 * strength) + 0.2 * pull
        src, dst = bonded.nonzero().T
        return kind, src, dst, target

    def batch(self, picks):
        kinds, srcs, dsts, targets = [], [], [], []
        base = 0
        for i in picks:
            kind, src, dst, target = self.items[i]
            kinds.append(kind)
            srcs.append(src + base)
            dsts.append(dst + base)
            targets.append(target)
            base += len(kind)
        return torch.cat(kinds), torch.cat(srcs), torch.cat(dsts), torch.cat(targets)


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.merge = nn.Linear(2 * dim, dim)

    def forward(self, h, src, dst):
        msg = self.message(torch.cat([h[src], h[dst]], dim=-1))
        total = torch.zeros_like(h)
        total[dst] += msg
        return h + F.silu(self.merge(torch.cat([h, total], dim=-1)))


class ChargeNet(nn.Module):
    def __init__(self, dim=32, layers=1):
        super().__init__()
        self.embed = nn.Embedding(ATOM_TYPES, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(layers))
        self.out = nn.Linear(dim, 1)

    def forward(self, kind, src, dst):
        h = self.embed(kind)
        for layer in self.layers:
            h = layer(h, src, dst)
        return self.out(h).squeeze(-1)


def run():
    train, val = Molecules(400, seed=1), Molecules(120, seed=2)
    net = ChargeNet()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    everything = val.batch(range(len(val.items)))
    for epoch in range(12):
        order = torch.randperm(len(train.items)).split(20)
        for picks in order:
            kind, src, dst, target = train.batch(picks.tolist())
            loss = F.mse_loss(net(kind, src, dst), target)
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            kind, src, dst, target = everything
            score = F.mse_loss(net(kind, src, dst), target).item()
        print(f"epoch {epoch} train {loss.item():.4f} val {score:.4f}")
    return score


print("RESULT", run())
