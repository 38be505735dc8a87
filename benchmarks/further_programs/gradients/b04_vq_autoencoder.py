import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class VectorQuantizer(nn.Module):
    def __init__(self, n_codes, dim, beta=0.25):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)
        self.beta = beta

    def forward(self, z):
        d = torch.cdist(z, self.codebook.weight)
        idx = d.argmin(-1)
        q = self.codebook(idx)
        loss = F.mse_loss(q, z.detach()) + self.beta * F.mse_loss(z, q.detach())
        q = z + (q - z)
        return q, loss, idx


class VQAutoencoder(nn.Module):
    def __init__(self, d_in=32, groups=4, dim=4, n_codes=16):
        super().__init__()
        self.groups, self.dim = groups, dim
        self.enc = nn.Sequential(nn.Linear(d_in, 64), nn.ReLU(), nn.Linear(64, groups * dim))
        self.vq = VectorQuantizer(n_codes, dim)
        self.dec = nn.Sequential(nn.Linear(groups * dim, 64), nn.ReLU(), nn.Linear(64, d_in))

    def forward(self, x):
        z = self.enc(x).view(-1, self.dim)
        q, vq_loss, idx = self.vq(z)
        return self.dec(q.view(len(x), -1)), vq_loss, idx


mix = torch.randn(6, 32)


def batch(n):
    s = torch.sign(torch.randn(n, 6)) * (0.5 + torch.rand(n, 6))
    return torch.tanh(s @ mix / 2) + 0.02 * torch.randn(n, 32)


model = VQAutoencoder()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
val = batch(1024)
for it in range(1200):
    x = batch(64)
    rec, vq_loss, idx = model(x)
    loss = F.mse_loss(rec, x) + vq_loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 300 == 0:
        print(it, f"loss {loss.item():.4f}", "codes used", idx.unique().numel())

model.eval()
with torch.no_grad():
    rec, _, _ = model(val)
print("RESULT", F.mse_loss(rec, val).item())
