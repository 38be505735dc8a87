"""Loan approval with a demographic parity constraint between two applicant groups."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(79)

N, FEATURES = 3000, 10
PARITY_WEIGHT = 4.0


def applicants(n):
    group = (torch.rand(n) < 0.5).long()
    x = torch.randn(n, FEATURES)
    x[:, 0] += 1.6 * group
    x[:, 1] += 0.8 * group
    merit = x[:, 0] + 0.7 * x[:, 2] - 0.7 * x[:, 3] + 0.5 * x[:, 4] * x[:, 5] - 0.8
    repaid = (merit + 0.5 * torch.randn(n) > 0).float()
    return x, group, repaid


class Approval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))

    def forward(self, x):
        return torch.sigmoid(self.net(x)).squeeze(1)


def parity_gap(score, group):
    """Difference of the approval rates of the two groups."""
    approved = (score > 0.5).float()
    return (approved[group == 1].mean() - approved[group == 0].mean()).abs()


def objective(score, group, repaid):
    bce = nn.functional.binary_cross_entropy(score, repaid)
    gap = parity_gap(score, group)
    return bce + PARITY_WEIGHT * gap, bce, gap


x, group, repaid = applicants(N)
model = Approval()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    model.train()
    for idx in torch.randperm(N).split(100):
        total, bce, gap = objective(model(x[idx]), group[idx], repaid[idx])
        opt.zero_grad()
        total.backward()
        opt.step()
    print(f"epoch {epoch}: objective {total.item():.3f} bce {bce.item():.3f} gap {gap.item():.3f}")

model.eval()
with torch.no_grad():
    x, group, repaid = applicants(2000)
    score = model(x)
    rate = (score > 0.5).float()
    gap = (rate[group == 1].mean() - rate[group == 0].mean()).abs()
    bce = nn.functional.binary_cross_entropy(score, repaid)
print(f"held-out bce {bce:.3f}, gap {gap:.3f}")
print("RESULT", float(bce + PARITY_WEIGHT * gap))
