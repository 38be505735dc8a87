"""Semi-supervised classification of two arcs with few labels and a consistency loss."""
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(6)

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--rampup", type=int, default=40)
parser.add_argument("--weight", type=float, default=60.0)
parser.add_argument("--jitter", type=float, default=0.1)
parser.add_argument("--decay", type=float, default=0.95)
args = parser.parse_args([])


def arcs(n, gen):
    label = torch.randint(0, 2, (n,), generator=gen)
    angle = torch.rand(n, generator=gen) * math.pi
    sign = 1.0 - 2.0 * label
    x = angle.cos() + label
    y = angle.sin() * sign + 0.4 * label
    return torch.stack([x, y], 1) + 0.09 * torch.randn(n, 2, generator=gen), label


def network():
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 2))


def consistency_weight(epoch):
    """Rises from 0 to the full weight over the ramp."""
    return args.weight * min(1, epoch // args.rampup)


def jittered(x):
    return x + args.jitter * torch.randn_like(x)


@torch.no_grad()
def error_rate(model, x, y):
    return (model(x).argmax(dim=1) != y).float().mean().item()


gen = torch.Generator().manual_seed(9)
pool_x, pool_y = arcs(1280, gen)
val_x, val_y = arcs(1000, gen)
known = torch.cat([(pool_y == c).nonzero().flatten()[:4] for c in (0, 1)])
student = network()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)

for epoch in range(args.epochs):
    for chunk in torch.randperm(len(pool_x)).split(128):
        supervised = F.cross_entropy(student(jittered(pool_x[known])), pool_y[known])
        with torch.no_grad():
            opinion = teacher(jittered(pool_x[chunk])).softmax(dim=1)
        agreement = F.mse_loss(student(jittered(pool_x[chunk])).softmax(dim=1), opinion)
        loss = supervised + consistency_weight(epoch) * agreement
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters()):
                slow.lerp_(fast, 1 - args.decay)
    if epoch % 5 == 4:
        print(f"epoch {epoch} supervised {supervised.item():.4f} agreement "
              f"{agreement.item():.4f} error {error_rate(teacher, val_x, val_y):.3f}")
print("RESULT", round(error_rate(teacher, val_x, val_y), 4))
