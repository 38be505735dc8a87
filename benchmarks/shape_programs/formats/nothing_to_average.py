"""Speaker embeddings with a margin: only triplets that still break the margin count."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SPEAKERS = 10
timbre = torch.randn(SPEAKERS, 24)


def utterances(speakers, each, g):
    who = torch.arange(speakers).repeat_interleave(each)
    return timbre[who] + 0.15 * torch.randn(len(who), 24, generator=g), who


class MarginMiner:
    def __init__(self, margin):
        self.margin = margin

    def violations(self, z, who):
        d = 1 - z @ z.T
        same = who[:, None] == who[None, :]
        v = d[:, :, None] - d[:, None, :] + self.margin
        valid = (same & ~torch.eye(len(who), dtype=torch.bool))[:, :, None] & ~same[:, None, :]
        return v, valid & (v > 0)

    def __call__(self, z, who):
        v, active = self.violations(z, who)
        active = active.to(v.dtype)
        return (v * active).sum() / active.sum()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 16))

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=-1)


g = torch.Generator().manual_seed(6)
encoder = Encoder()
miner = MarginMiner(0.3)
optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
for step in range(120):
    x, who = utterances(SPEAKERS, 3, g)
    loss = miner(encoder(x), who)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    x, who = utterances(SPEAKERS, 8, g)
    z = encoder(x)
    near = z @ z.T
    inside = near.masked_fill(who[:, None] != who[None, :], 2).amin(1)
    outside = near.masked_fill(who[:, None] == who[None, :], -2).amax(1)
print("RESULT", (outside - inside).mean().item())
