"""Imitate the move distribution of a search engine over the legal moves of a position."""
import torch
torch.set_num_threads(1)
torch.manual_seed(381)
from torch import nn
import torch.nn.functional as F

MOVES, PIECES, FEATS = 30, 8, 10


def positions(n, gen):
    """Piece features, legal moves, the engine's distribution, and results of few games."""
    w = torch.randn(FEATS, MOVES, generator=torch.Generator().manual_seed(11))
    v = torch.randn(FEATS, generator=torch.Generator().manual_seed(12))
    x = torch.randn(n, PIECES, FEATS, generator=gen)
    alive = torch.rand(n, PIECES, generator=gen) < 0.8
    alive[:, 0] = True
    legal = torch.rand(n, MOVES, generator=gen) < 0.4
    legal[:, 0] = True
    summary = (x * alive[:, :, None]).sum(1) / alive.sum(1, keepdim=True) * 2
    logits = (summary @ w).masked_fill(~legal, float("-inf"))
    search = logits.softmax(1)
    finished = torch.rand(n, generator=gen) < 0.06
    outcome = torch.tanh(summary @ v) + 0.1 * torch.randn(n, generator=gen)
    return x, alive, legal, search, finished, outcome


class PositionNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.lift = nn.Linear(FEATS, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())
        self.policy = nn.Linear(dim, MOVES)
        self.value = nn.Linear(dim, 1)

    def forward(self, x, alive, legal):
        h = self.lift(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        att = (q @ k.transpose(1, 2)) / q.shape[-1] ** 0.5
        att = att.masked_fill(~alive[:, None], float("-inf")).softmax(-1).to(v.dtype)
        h = h + att @ v
        h = (h * alive[:, :, None]).sum(1) / alive.sum(1, keepdim=True)
        h = h + self.mlp(h)
        return self.policy(h).float().masked_fill(~legal, float("-inf")), self.value(h).float()


def losses(policy, value, legal, search, finished, outcome):
    logp = policy.log_softmax(1).masked_fill(~legal, 0.0)
    cross = -(search * logp).sum(1).mean()
    err = (value.squeeze(1) - outcome).square()
    game = (err * finished).sum() / finished.sum().clamp(min=1)
    return cross, game


gen = torch.Generator().manual_seed(1)
train, val = positions(6000, gen), positions(1000, gen)
entropy = -(val[3] * val[3].clamp(min=1e-12).log()).sum(1).mean()
model = PositionNet()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 400)


def run(data, rows):
    x, alive, legal, search, finished, outcome = (t[rows] for t in data)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        policy, value = model(x, alive, legal)
    return losses(policy, value, legal, search, finished, outcome)


for step in range(400):
    cross, game = run(train, torch.randint(6000, (32,)))
    opt.zero_grad()
    (cross + 0.3 * game).backward()
    opt.step()
    sched.step()
    if step % 80 == 0:
        print(f"step {step} cross {cross.item():.4f} game {game.item():.4f}")

with torch.no_grad():
    cross, game = run(val, torch.arange(1000))
    print(f"game error {game.item():.4f}")
    print("RESULT", (cross - entropy).item())
