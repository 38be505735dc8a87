"""Self-distillation: the teacher is an average of the student and its branch carries no gradient."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)

proto = torch.randn(6, 30)


def objects(n):
    y = torch.randint(0, 6, (n,))
    return proto[y] + 0.5 * torch.randn(n, 30), y


def view(x):
    keep = (torch.rand_like(x) > 0.2).float()
    return x * keep + 0.3 * torch.randn_like(x)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


student = mlp(30, 64, 24)
predictor = mlp(24, 48, 24)
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)

opt = torch.optim.AdamW([*student.parameters(), *predictor.parameters()], lr=2e-3, weight_decay=1e-3)
x, y = objects(1600)
for step in range(240):
    idx = torch.randint(0, len(x), (64,))
    a, b = view(x[idx]), view(x[idx])
    with torch.no_grad():
        target = F.normalize(teacher(b), dim=1)
    guess = F.normalize(predictor(student(a)), dim=1)
    loss = 2 - 2 * (guess * target).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 0.02)
    if step % 60 == 0:
        print(step, loss.item())

student.eval()
with torch.no_grad():
    features = student(x)
probe = nn.Linear(24, 6)
opt = torch.optim.Adam(probe.parameters(), lr=2e-2)
for step in range(100):
    loss = F.cross_entropy(probe(features), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
xt, yt = objects(500)
with torch.no_grad():
    print("RESULT", F.cross_entropy(probe(student(xt)), yt).item())
