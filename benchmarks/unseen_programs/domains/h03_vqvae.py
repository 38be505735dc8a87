import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(40)


def make_patches(n):
    """Small textures, each built from two of a handful of strokes."""
    strokes = torch.randn(12, 48, generator=torch.Generator().manual_seed(1))
    a, b = torch.randint(0, 12, (2, n))
    return torch.cat([strokes[a], strokes[b]], 1) + 0.1 * torch.randn(n, 96)


class Codebook(nn.Module):
    def __init__(self, size=32, dim=8, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(size, dim))
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", self.codes.clone())
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def _learn(self, flat, idx):
        hot = F.one_hot(idx, len(self.codes)).float()
        self.count.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(hot.T @ flat, alpha=1 - self.decay)
        self.codes.copy_(self.total / self.count.clamp(min=1e-3).unsqueeze(1))
        dead = self.count < 0.05
        if dead.any():
            fresh = flat[torch.randint(0, len(flat), (int(dead.sum()),))]
            self.codes[dead], self.total[dead], self.count[dead] = fresh, fresh, 1.0

    def forward(self, z):
        flat = z.reshape(-1, z.shape[-1])
        if self.training and not self.ready:
            first = flat.detach()[torch.randperm(len(flat))[:len(self.codes)]]
            self.codes.copy_(first)
            self.total.copy_(first)
            self.ready.fill_(True)
        idx = torch.cdist(flat.detach(), self.codes).argmin(1)
        q = self.codes[idx].view_as(z)
        if self.training:
            self._learn(flat.detach(), idx)
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, idx.view(z.shape[:-1])


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 8))
        self.vq = Codebook()
        self.dec = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 48))

    def forward(self, x):
        z = self.enc(x.view(len(x), 2, 48))
        q, commit, idx = self.vq(z)
        return self.dec(q).reshape(len(x), 96), commit, idx


@torch.no_grad()
def validate(model, x):
    model.eval()
    rec, _, idx = model(x)
    model.train()
    return (F.mse_loss(rec, x) / x.var()).item(), len(idx.unique())


model = VQVAE()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
train_x, val_x = make_patches(4000), make_patches(500)
for epoch in range(20):
    for idx in torch.randperm(len(train_x)).split(128):
        x = train_x[idx]
        rec, commit, _ = model(x)
        loss = F.mse_loss(rec, x) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
    rel, used = validate(model, val_x)
    if epoch % 4 == 3:
        print(f"epoch {epoch} loss {loss.item():.4f} val {rel:.4f} codes {used}")
print("RESULT", validate(model, val_x)[0])
