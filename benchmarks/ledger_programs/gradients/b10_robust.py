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
        loss = F.cross_entropy(model(adv), y)
        loss.backward()
        adv = adv + ALPHA * adv.grad.sign()
        adv = x + (adv - x).clamp(-EPS, EPS)
    return adv.detach()


def train(model, epochs=10, bs=64):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.12, momentum=0.9)
    x, y = blobs(1280)
    for epoch in range(epochs):
        perm = torch.randperm(len(x))
        for k in range(0, len(x), bs):
            xb, yb = x[perm[k:k + bs]], y[perm[k:k + bs]]
            optimizer.zero_grad()
            adv = pgd_attack(model, xb, yb)
            loss = F.cross_entropy(model(adv), yb)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} adv loss {loss.item():.4f}")


def robust_loss(model):
    x, y = blobs(600)
    adv = pgd_attack(model, x, y)
    with torch.no_grad():
        return F.cross_entropy(model(adv), y).item()


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
train(model)
print(f"result: {robust_loss(model):.4f}")
