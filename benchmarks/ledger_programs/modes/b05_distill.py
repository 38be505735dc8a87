"""Distil a wide network into a narrow one on unlabelled batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
D, C = 16, 4
W = torch.randn(D, 24)
R = torch.randn(24, C)


def data(n):
    x = torch.randn(n, D) + 1.0
    return x, (torch.tanh(x @ W * 0.5) @ R).argmax(-1)


def mlp(width, p):
    return nn.Sequential(nn.Linear(D, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p),
                         nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p),
                         nn.Linear(width, C))


def one_source(n):
    """An unlabelled batch from a single site."""
    site = torch.randn(1, D)
    return 1.0 + 0.87 * site + 0.5 * torch.randn(n, D)


def pretrain():
    net = mlp(96, 0.5)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(300):
        x, y = data(64)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


def kd_loss(s, t, T=2.0):
    return F.kl_div(F.log_softmax(s / T, -1), F.softmax(t / T, -1), reduction="batchmean") * T * T


teacher = pretrain()
teacher.requires_grad_(False)
student = nn.Sequential(nn.Linear(D, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, C))
opt = torch.optim.Adam(student.parameters(), lr=5e-3)
student.train()
for step in range(350):
    x = one_source(32)
    with torch.no_grad():
        t = teacher(x)
    loss = kd_loss(student(x), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 70 == 0:
        print(step, loss.item())

student.eval()
with torch.no_grad():
    x, y = data(3000)
    print("result:", F.cross_entropy(student(x), y).item())
