"""Compress hand gestures to discrete codes with a vector-quantised autoencoder."""
import torch
torch.set_num_threads(1)
torch.manual_seed(351)
import math
from torch import nn
import torch.nn.functional as F

STEPS_T, CODES, DIM = 24, 48, 8


def gestures(n, gen=None):
    kind = torch.randint(6, (n,), generator=gen)
    t = torch.linspace(0, 2 * math.pi, STEPS_T)
    a = (1 + kind % 3)[:, None]
    b = (1 + kind // 3)[:, None]
    size = 0.8 + 0.3 * torch.rand(n, 1, generator=gen)
    path = torch.stack([size * torch.sin(a * t), size * torch.cos(b * t)], 1)
    return path + 0.05 * torch.randn(path.shape, generator=gen)


class Codebook(nn.Module):
    def __init__(self, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(CODES, DIM))
        self.register_buffer("count", torch.ones(CODES))
        self.register_buffer("total", self.codes.clone())

    @torch.no_grad()
    def follow(self, flat, pick):
        hot = F.one_hot(pick, CODES).float()
        self.count.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(hot.t() @ flat, alpha=1 - self.decay)
        idle = self.count < 0.05
        if idle.any():
            fresh = flat[torch.randint(len(flat), (int(idle.sum()),))]
            self.total[idle], self.count[idle] = fresh, 1.0
        self.codes.copy_(self.total / self.count[:, None])

    def forward(self, z):
        flat = z.transpose(1, 2).reshape(-1, DIM)
        pick = torch.cdist(flat.detach(), self.codes).argmin(1)
        near = self.codes[pick].view(z.shape[0], -1, DIM).transpose(1, 2)
        commit = F.mse_loss(z, near.detach())
        if self.training:
            self.follow(flat.detach(), pick)
        use = torch.bincount(pick, minlength=CODES).float() / len(pick)
        spread = torch.exp(-(use * (use + 1e-9).log()).sum()).item()
        return z + (near - z).detach(), commit, spread


class GestureVQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(2, 32, 4, 2, 1), nn.ReLU(), nn.Conv1d(32, DIM, 4, 2, 1))
        self.book = Codebook()
        self.dec = nn.Sequential(nn.ConvTranspose1d(DIM, 32, 4, 2, 1), nn.ReLU(),
                                 nn.ConvTranspose1d(32, 2, 4, 2, 1))

    def forward(self, x):
        z, commit, spread = self.book(self.enc(x))
        return self.dec(z), commit, spread


model = GestureVQ()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(350):
    x = gestures(64)
    out, commit, spread = model(x)
    loss = F.mse_loss(out, x) + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 70 == 0:
        print(f"step {step} loss {loss.item():.4f} codes in use {spread:.1f}")

model.eval()
x = gestures(500, torch.Generator().manual_seed(8))
with torch.no_grad():
    print("RESULT", F.mse_loss(model(x)[0], x).item())
