import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)


def mlp(width, p):
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Dropout(p), nn.Linear(width, width), nn.ReLU(),
                         nn.Dropout(p), nn.Linear(width, 8))


class Distiller(nn.Module):
    def __init__(self, teacher, student, temperature=2.0):
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.t = temperature

    def forward(self, x):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.t, -1)
        log_p = F.log_softmax(self.student(x) / self.t, -1)
        return F.kl_div(log_p, soft, reduction="batchmean") * self.t ** 2


centers = 1.5 * torch.randn(8, 2, 10)


def data(n):
    y = torch.randint(8, (n,))
    mode = torch.randint(2, (n,))
    return centers[y, mode] + torch.randn(n, 10), y


def fit_teacher(steps=500):
    net = mlp(128, 0.6)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        x, y = data(64)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


vx, vy = data(2000)
teacher = fit_teacher()
distiller = Distiller(teacher, mlp(48, 0.0))
opt = torch.optim.Adam(distiller.student.parameters(), lr=3e-3)
pool, _ = data(600)
for epoch in range(25):
    distiller.train()
    for idx in torch.randperm(len(pool)).split(50):
        loss = distiller(pool[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 8 == 0:
        print(epoch, loss.item())

distiller.eval()
with torch.no_grad():
    print("teacher", F.cross_entropy(distiller.teacher(vx), vy).item())
    print("RESULT", distiller(vx).item())
