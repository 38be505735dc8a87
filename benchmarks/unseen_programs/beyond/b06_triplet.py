"""Learns an embedding of noisy patterns with a triplet loss over batches of identities."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(14)

IDENTITIES, HELD_OUT, DIM = 40, 20, 64
basis = torch.randn(12, DIM)
codes = torch.randn(IDENTITIES + HELD_OUT, 12)


def views(identity):
    """One noisy view of each given identity, with a strong nuisance component."""
    n = len(identity)
    clean = torch.tanh(codes[identity] @ basis / 3)
    nuisance = 2.0 * torch.randn(n, 6) @ torch.sin(torch.arange(6 * DIM).view(6, DIM) * 1.7)
    return clean + nuisance + 0.2 * torch.randn(n, DIM)


class Embedder(nn.Module):
    def __init__(self, out=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, out))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=1)


def pairwise(z):
    squared = 2.0 - 2.0 * z @ z.t()
    return squared.clamp(min=1e-8).sqrt()


def batch_hard_loss(z, identity, margin=0.3):
    distance = pairwise(z)
    same = identity[:, None] == identity[None, :]
    eye = torch.eye(len(z), dtype=torch.bool)
    positive = (distance * (same & ~eye).float()).max(dim=1).values
    negative = (distance * (~same).float()).min(dim=1).values
    return F.relu(positive - negative + margin).mean()


@torch.no_grad()
def retrieval_error(model, lo, hi, per=10):
    """How often the nearest neighbour of a view shows another identity."""
    identity = torch.arange(lo, hi).repeat_interleave(per)
    z = model(views(identity))
    distance = pairwise(z) + 10 * torch.eye(len(z))
    nearest = identity[distance.argmin(dim=1)]
    return (nearest != identity).float().mean().item()


model = Embedder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(300):
    chosen = torch.randperm(IDENTITIES)[:16]
    identity = chosen.repeat_interleave(4)
    loss = batch_hard_loss(model(views(identity)), identity)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 59:
        error = retrieval_error(model, 0, IDENTITIES)
        print(f"step {step + 1} loss {loss.item():.3f} train identities error {error:.3f}")
print("RESULT", round(retrieval_error(model, IDENTITIES, IDENTITIES + HELD_OUT), 4))
