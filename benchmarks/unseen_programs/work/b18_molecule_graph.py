"""Message passing on small molecule-like graphs in fp16, regression of a bond energy."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(22)

ATOMS, KINDS = 8, 5
HYPER = dict(width=24, rounds=2, batch=32, steps=130, lr=0.02, momentum=0.9)


def molecules(n, gen):
    """Random trees with a few rings; the energy sums over bonds and over neighbours of bonds."""
    strength = torch.randn(KINDS, KINDS, generator=torch.Generator().manual_seed(7))
    strength = (strength + strength.T) / 2
    kind = torch.randint(0, KINDS, (n, ATOMS), generator=gen)
    adj = torch.zeros(n, ATOMS, ATOMS)
    rows = torch.arange(n)
    for a in range(1, ATOMS):
        parent = (torch.rand(n, generator=gen) * a).long()
        adj[rows, a, parent] = adj[rows, parent, a] = 1
    ring = torch.rand(n, generator=gen) < 0.4
    adj[ring, 0, ATOMS - 1] = adj[ring, ATOMS - 1, 0] = 1
    pair = strength[kind[:, :, None], kind[:, None, :]]
    degree = adj.sum(-1)
    energy = (adj * pair).sum((1, 2)) / 2 + 0.3 * (degree - 2).clamp(min=0).sum(1)
    energy = energy + 0.05 * torch.randn(n, generator=gen)
    return kind, adj, energy


class Round(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, h, adj):
        around = adj.to(h.dtype) @ h
        return self.norm(h + F.relu(self.own(h) + self.others(around)))


class EnergyNet(nn.Module):
    def __init__(self, width, rounds):
        super().__init__()
        self.atom = nn.Embedding(KINDS, width)
        self.rounds = nn.ModuleList([Round(width) for _ in range(rounds)])
        self.out = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, kind, adj):
        h = self.atom(kind)
        for r in self.rounds:
            h = r(h, adj)
        return self.out(h).float().mean(1).squeeze(-1) * ATOMS


def train(data, val, hyper, gen):
    model = EnergyNet(hyper["width"], hyper["rounds"])
    opt = torch.optim.SGD(model.parameters(), lr=hyper["lr"], momentum=hyper["momentum"])
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_factor=8.0, backoff_factor=0.5, growth_interval=2
    )
    kind, adj, energy = data
    spread = energy.std()
    skipped = 0
    for step in range(hyper["steps"]):
        pick = torch.randint(0, len(kind), (hyper["batch"],), generator=gen)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(kind[pick], adj[pick])
        loss = F.smooth_l1_loss(pred, energy[pick]) / spread
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
        if step % 26 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {before:.0f} skipped {skipped}")
    with torch.no_grad():
        return F.mse_loss(model(val[0], val[1]), val[2]).item()


if __name__ == "__main__":
    gen = torch.Generator().manual_seed(220)
    data, val = molecules(2000, gen), molecules(400, gen)
    print("variance of the validation energies", round(val[2].var().item(), 4))
    print(f"RESULT {train(data, val, HYPER, gen):.5f}")
