"""Mean teacher: the averaged model also runs with dropout and noise while it gives targets - that is the method."""
import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_num_threads(1)


def rings(n):
    y = torch.arange(n) % 2
    r = 1.0 + y + 0.1 * torch.randn(n)
    a = 6.283 * torch.rand(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1), y


student = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
teacher = copy.deepcopy(student).requires_grad_(False)
student.train()
teacher.train()
opt = torch.optim.Adam(student.parameters(), lr=3e-3)
lx, ly = rings(40)
ux, _ = rings(1000)
for step in range(800):
    u = ux[torch.randint(len(ux), (64,))]
    with torch.no_grad():
        target = teacher(u + 0.1 * torch.randn_like(u)).softmax(-1)
    cons = F.mse_loss(student(u + 0.1 * torch.randn_like(u)).softmax(-1), target)
    loss = F.cross_entropy(student(lx), ly) + min(1.0, step / 400) * 3.0 * cons
    opt.zero_grad()
    loss.backward()
    opt.step()
    decay = min(0.99, 1 - 1 / (step + 1))
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.lerp_(s, 1 - decay)
    if step % 200 == 0:
        # a look in between, only the teacher changes its mode for it
        teacher.eval()
        with torch.no_grad():
            print(step, F.cross_entropy(teacher(lx), ly).item())
        teacher.train()

teacher.eval()
vx, vy = rings(2000)
with torch.no_grad():
    print("RESULT", F.cross_entropy(teacher(vx), vy).item())
