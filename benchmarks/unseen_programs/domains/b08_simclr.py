import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2)

DIM, CLASSES = 32, 6
world = torch.Generator().manual_seed(123)
CENTRES = torch.randn(CLASSES, 8, generator=world)
MIX = torch.linalg.qr(torch.randn(DIM, DIM, generator=world))[0]


def sample(n, seed):
    """8 content dimensions carry the class; 24 dimensions are 'recording conditions'."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    content = CENTRES[y] + 0.55 * torch.randn(n, 8, generator=g)
    condition = 3.0 * torch.randn(n, DIM - 8, generator=g)
    return torch.cat([content, condition], 1) @ MIX, y


class Augment:
    """Changes the recording conditions; every draw can be reproduced from (seed, step)."""

    def __init__(self, seed=0):
        self.seed = seed
        self.step = 0

    def advance(self):
        self.step += 1

    def __call__(self, x):
        g = torch.Generator().manual_seed(self.seed * 100_003 + self.step)
        z = x @ MIX.T
        content, condition = z[:, :8], z[:, 8:]
        scale = 0.3 + torch.rand(len(x), 1, generator=g)
        condition = condition * scale + 3.0 * torch.randn(condition.shape, generator=g)
        content = content + 0.1 * torch.randn(content.shape, generator=g)
        return torch.cat([content, condition], 1) @ MIX


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(DIM, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 8))
        self.projector = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return F.normalize(self.projector(self.encoder(x)), dim=1)


def nt_xent(a, b, tau=0.3):
    z = torch.cat([a, b])
    n = len(a)
    sim = z @ z.T / tau
    sim.fill_diagonal_(float("-inf"))
    partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, partner)


def linear_probe(encoder, train, test):
    encoder.eval()
    with torch.no_grad():
        f, g = encoder(train[0]), encoder(test[0])
    mu, sd = f.mean(0), f.std(0) + 1e-6
    f, g = (f - mu) / sd, (g - mu) / sd
    probe = nn.Linear(f.shape[1], CLASSES)
    opt = torch.optim.Adam(probe.parameters(), lr=0.05)
    for _ in range(150):
        loss = F.cross_entropy(probe(f), train[1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (probe(g).argmax(1) == test[1]).float().mean().item()


unlabelled, _ = sample(4096, 1)
model, augment = SimCLR(), Augment(seed=4)
opt = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-5)
for epoch in range(25):
    model.train()
    total = 0.0
    for idx in torch.randperm(len(unlabelled)).split(256):
        x = unlabelled[idx]
        loss = nt_xent(model(augment(x)), model(augment(x)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        augment.advance()
        total += loss.item()
    if epoch % 5 == 4:
        print(f"epoch {epoch} nt-xent {total / 16:.4f}")

acc = linear_probe(model.encoder, sample(600, 2), sample(1000, 3))
print("probe accuracy", acc)
print("RESULT", 1 - acc)
