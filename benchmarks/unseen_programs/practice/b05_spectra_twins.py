"""Learn features of mineral spectra without labels from two noisy scans, then probe them."""
import torch
torch.set_num_threads(1)
torch.manual_seed(14)
from torch import nn
import torch.nn.functional as F

BANDS, MINERALS = 96, 8
grid = torch.linspace(0, 1, BANDS)
centres = torch.rand(MINERALS, 4)
depths = torch.rand(MINERALS, 4) + 0.3


def spectra(n):
    kind = torch.randint(MINERALS, (n,))
    c = centres[kind] + 0.01 * torch.randn(n, 4)
    dips = depths[kind][:, :, None] * torch.exp(-((grid - c[:, :, None]) / 0.04) ** 2)
    return 1 - 0.5 * dips.sum(1), kind


def scan(clean):
    gain = 1 + 0.2 * torch.randn(len(clean), 1)
    slope = 0.3 * torch.randn(len(clean), 1) * (grid - 0.5)
    return clean * gain + slope + 0.08 * torch.randn_like(clean)


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.BatchNorm1d(16), nn.ReLU(),
            nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 24, dim))
        self.project = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x):
        return self.conv(x[:, None])


def redundancy_loss(a, b, weight=0.02):
    with torch.autocast("cpu", enabled=False):
        a, b = a.float(), b.float()
        a = (a - a.mean(0)) / (a.std(0) + 1e-4)
        b = (b - b.mean(0)) / (b.std(0) + 1e-4)
        corr = a.t() @ b / len(a)
        diag = torch.diagonal(corr)
        off = (corr ** 2).sum() - (diag ** 2).sum()
        return ((1 - diag) ** 2).sum() + weight * off


def probe(encoder):
    encoder.eval()
    with torch.no_grad():
        clean, kind = spectra(1500)
        feats = encoder(scan(clean))
        feats = (feats - feats.mean(0)) / (feats.std(0) + 1e-5)
    head = nn.Linear(feats.shape[1], MINERALS)
    solver = torch.optim.LBFGS(head.parameters(), lr=0.5, max_iter=60)

    def closure():
        solver.zero_grad()
        value = F.cross_entropy(head(feats[:1000]), kind[:1000])
        value = value + 1e-3 * head.weight.square().sum()
        value.backward()
        return value

    solver.step(closure)
    with torch.no_grad():
        return F.cross_entropy(head(feats[1000:]), kind[1000:]).item()


encoder = Encoder()
opt = torch.optim.AdamW(encoder.parameters(), lr=2e-3, weight_decay=1e-4)
for step in range(160):
    clean, _ = spectra(192)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        za = encoder.project(encoder(scan(clean)))
        zb = encoder.project(encoder(scan(clean)))
        loss = redundancy_loss(za, zb)
        opt.zero_grad()
        loss.backward()
    opt.step()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.3f}")

print("RESULT", probe(encoder))
