"""Few labels plus many unlabelled points, consistency to a slow teacher."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
torch.set_num_threads(1)
D = 20
w = torch.randn(D, 2)


def points(n):
    x = torch.randn(n, D)
    return x, (x @ w + 0.7 * torch.randn(n, 2)).argmax(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(D, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.5),
                               nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.5))
        self.out = nn.Linear(96, 2)

    def forward(self, x):
        return self.out(self.f(x))


@torch.no_grad()
def update_teacher(teacher, student, decay):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(decay).add_(s, alpha=1 - decay)
    for t, s in zip(teacher.buffers(), student.buffers()):
        t.copy_(s)


lx, ly = points(200)
ux, _ = points(2000)
vx, vy = points(1500)

student = Net()
student.train()
teacher = copy.copy(student)
teacher.eval()
opt = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(400):
    i, j = torch.randint(0, 200, (32,)), torch.randint(0, 2000, (64,))
    with torch.no_grad():
        t = teacher(ux[j]).softmax(-1)
    s = student(torch.cat([lx[i], ux[j]]))
    ramp = min(1.0, step / 150)
    loss = F.cross_entropy(s[:32], ly[i]) + ramp * F.mse_loss(s[32:].softmax(-1), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
    update_teacher(teacher, student, 0.98)
    if step % 100 == 0:
        print(step, loss.item())

with torch.no_grad():
    student.eval()
    print("result:", F.cross_entropy(student(vx), vy).item())
