"""Trains a classifier that withstands small attacks, by training on attacked inputs."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

RADIUS, ATTACK_STEPS, ATTACK_RATE = 0.08, 4, 0.03


def samples(n, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (n,), generator=gen)
    x = 0.15 * torch.randn(n, 16, generator=gen) + 0.5
    x[:, :4] += 0.3 * (label - 1).unsqueeze(1)
    x[:, 4:] += 0.04 * (label - 1).unsqueeze(1)
    return x.clamp(0, 1), label


def attack(model, x, y):
    """Climbs the loss within a box around x, and within the range of valid inputs."""
    moved = x + RADIUS * (2 * torch.rand_like(x) - 1)
    for _ in range(ATTACK_STEPS):
        moved = moved.detach().requires_grad_(True)
        loss = F.cross_entropy(model(moved), y)
        slope, = torch.autograd.grad(loss, moved)
        moved = moved + ATTACK_RATE * slope.sign()
        moved = torch.maximum(torch.minimum(moved, x + RADIUS), x - RADIUS).clamp(0, 1)
    return moved.detach()


def errors(model, x, y):
    model.eval()
    attacked = attack(model, x, y)
    with torch.no_grad():
        clean = (model(x).argmax(1) != y).float().mean().item()
        hard = (model(attacked).argmax(1) != y).float().mean().item()
    model.train()
    return clean, hard


train_x, train_y = samples(3000, 1)
val_x, val_y = samples(1000, 2)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                      nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(8):
    for chunk in torch.randperm(len(train_x)).split(100):
        x, y = train_x[chunk], train_y[chunk]
        model.eval()
        attacked = attack(model, x, y)
        model.train()
        loss = F.cross_entropy(model(attacked), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    clean, hard = errors(model, val_x, val_y)
    print(f"epoch {epoch} loss {loss.item():.4f} clean {clean:.4f} attacked {hard:.4f}")
print("RESULT", round(hard, 4))
