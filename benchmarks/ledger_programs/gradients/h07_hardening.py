import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
torch.set_num_threads(1)
EPS, ALPHA, ATTACK_STEPS = 0.25, 0.1, 4


def blobs(n):
    centres = torch.randn(6, 16, generator=torch.Generator().manual_seed(99)) * 0.9
    y = torch.randint(0, 6, (n,))
    return centres[y] + 0.45 * torch.randn(n, 16), y


def pgd_attack(model, x, y):
    adv = x + torch.empty_like(x).uniform_(-EPS, EPS)
    for _ in range(ATTACK_STEPS):
        adv = adv.detach().requires_grad_(True)
        F.cross_entropy(model(adv), y).backward()
        adv = x + (adv + ALPHA * adv.grad.sign() - x).clamp(-EPS, EPS)
    return adv.detach()


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x, y = blobs(1280)
xv, yv = blobs(400)
for epoch in range(8):
    for idx in torch.randperm(len(x)).split(64):
        adv = pgd_attack(model, x[idx], y[idx])
        loss = F.cross_entropy(model(torch.cat([x[idx], adv])), y[idx].repeat(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    va = pgd_attack(model, xv, yv)
    with torch.no_grad():
        print(f"epoch {epoch} train {loss.item():.4f} robust val {F.cross_entropy(model(va), yv).item():.4f}")

with torch.no_grad():
    print(f"result: {F.cross_entropy(model(va), yv).item():.4f}")
