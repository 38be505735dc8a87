import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(13)
T = 2.0
centers = torch.randn(8, 20) * 1.2


def blobs(n):
    y = torch.randint(0, 8, (n,))
    return centers[y] + 2.8 * torch.randn(n, 20), y


def train_teacher(x, y):
    net = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 8))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(200):
        i = torch.randint(0, len(x), (128,))
        loss = F.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.eval().requires_grad_(False)


def soft_loss(student_logits, teacher_logits):
    p = F.softmax(teacher_logits / T, dim=1)
    s = F.softmax(student_logits / T, dim=1)
    return F.kl_div(s, p, reduction="batchmean") * T * T


x, y = blobs(3000)
xu, _ = blobs(6000)
xv, yv = blobs(1500)
teacher = train_teacher(x, y)
student = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 8))
opt = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(600):
    xb = xu[torch.randint(0, len(xu), (128,))]
    loss = soft_loss(student(xb), teacher(xb))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, f"{loss.item():.4f}")
with torch.no_grad():
    print("RESULT", F.cross_entropy(student(xv), yv).item())
