"""Tag particle jets with a network that compares the directions of their particles."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1616)

PARTICLES, FEATURES, DIM = 12, 5, 24


def make_jets(n):
    """Two-prong jets against one-prong jets; missing particles are rows of zeros."""
    label = torch.randint(0, 2, (n,))
    count = torch.randint(4, PARTICLES + 1, (n,))
    axis = torch.randn(n, 2, 2) * 0.6
    prong = torch.randint(0, 2, (n, PARTICLES)) * label[:, None]
    direction = axis[torch.arange(n)[:, None], prong]
    eta_phi = direction + 0.12 * torch.randn(n, PARTICLES, 2)
    pt = torch.rand(n, PARTICLES, 1).pow(2) + 0.1
    energy = pt * torch.cosh(eta_phi[..., :1])
    charge = torch.randint(-1, 2, (n, PARTICLES, 1)).float()
    x = torch.cat([eta_phi, pt, energy, charge], dim=-1)
    present = torch.arange(PARTICLES)[None] < count[:, None]
    return x * present.unsqueeze(-1), label


def unit(v, eps=1e-6):
    length = v.norm(dim=-1, keepdim=True)
    if not torch.compiler.is_compiling() and bool((length == 0).any()):
        length = length.clamp_min(eps)
    return v / length


class DirectionMixing(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.direction = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.temperature = nn.Parameter(torch.tensor(5.0))

    def forward(self, h):
        d = unit(self.direction(h))
        cosine = d @ d.transpose(1, 2)
        return h + F.relu(torch.softmax(self.temperature * cosine, dim=-1) @ self.value(h))


class JetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(FEATURES, DIM, bias=False), nn.Tanh(),
                                   nn.Linear(DIM, DIM, bias=False))
        self.mix = nn.ModuleList([DirectionMixing(DIM) for _ in range(2)])
        self.head = nn.Sequential(nn.Linear(2 * DIM, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        h = self.embed(x)
        for mix in self.mix:
            h = mix(h)
        return self.head(torch.cat([h.mean(1), h.amax(1)], dim=-1))


def main():
    x, y = make_jets(3000)
    vx, vy = make_jets(600)
    model = JetNet()
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = 160
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        idx = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(fast(x[idx]), y[idx], label_smoothing=0.02)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        print(f"RESULT {F.cross_entropy(model(vx), vy).item():.5f}")


if __name__ == "__main__":
    main()
