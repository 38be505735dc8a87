"""Trains a classifier, then makes it forget one class and keep the others."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(10)

CLASSES, FORGET, DIM = 5, 3, 24
centres = torch.randn(CLASSES, DIM)


def samples(n, seed):
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=gen)
    return centres[label] + 1.1 * torch.randn(n, DIM, generator=gen), label


def batches(x, y, epochs):
    for _ in range(epochs):
        for chunk in torch.randperm(len(x)).split(80):
            yield x[chunk], y[chunk]


@torch.no_grad()
def errors(model, x, y):
    wrong = (model(x).argmax(1) != y).float()
    return wrong[y != FORGET].mean().item(), wrong[y == FORGET].mean().item()


train_x, train_y = samples(3200, 1)
val_x, val_y = samples(1500, 2)
model = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                      nn.Linear(64, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for x, y in batches(train_x, train_y, 4):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained: others %.4f, class to forget %.4f" % errors(model, val_x, val_y))

keep = train_y != FORGET
kept_x, kept_y = train_x[keep], train_y[keep]
gone_x = train_x[~keep]
gone_y = torch.full((len(gone_x),), FORGET)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
for x, y in batches(kept_x, kept_y, 4):
    pick = torch.randint(0, len(gone_x), (40,))
    retained = F.cross_entropy(model(x), y)
    known = F.cross_entropy(model(gone_x[pick]), gone_y[pick])
    loss = retained - 0.5 * known.clamp(max=4.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 32 == 0:
        others, gone = errors(model, val_x, val_y)
        print(f"step {step} retained {retained.item():.4f} known {known.item():.4f} "
              f"others {others:.4f} forgotten {gone:.4f}")
others, gone = errors(model, val_x, val_y)
print("RESULT", round(others + (1 - gone), 4))
