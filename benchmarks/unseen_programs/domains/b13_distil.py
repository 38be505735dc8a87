import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(17)

CLASSES, DIM = 5, 16
proto = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(4)) * 1.1


def draw(y):
    x = proto[y] + 0.8 * torch.randn(len(y), DIM)
    return x + 0.3 * torch.sin(3 * x.roll(1, 1))


class Teacher(nn.Module):
    def __init__(self, w=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, w), nn.BatchNorm1d(w), nn.ReLU(),
                                  nn.Linear(w, w), nn.BatchNorm1d(w), nn.ReLU())
        self.head = nn.Linear(w, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


class Student(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(DIM, w), nn.LayerNorm(w), nn.GELU(), nn.Linear(w, CLASSES))

    def forward(self, x):
        return self.net(x)


class Distiller(nn.Module):
    """Matches the student's softened outputs with those of the (fixed) teacher."""

    def __init__(self, teacher, student, temperature=2.0):
        super().__init__()
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.T = temperature

    def forward(self, x):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.T, dim=1)
        logp = F.log_softmax(self.student(x) / self.T, dim=1)
        return F.kl_div(logp, soft, reduction="batchmean") * self.T ** 2


@torch.no_grad()
def error(model, x, y):
    model.eval()
    return (model(x).argmax(1) != y).float().mean().item()


def train_teacher(val):
    y = torch.randint(0, CLASSES, (2000,))
    loader = DataLoader(TensorDataset(draw(y), y), batch_size=64, shuffle=True)
    teacher = Teacher()
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(8):
        teacher.train()
        for xb, yb in loader:
            opt.zero_grad()
            F.cross_entropy(teacher(xb), yb).backward()
            opt.step()
    print("teacher error", error(teacher, *val))
    return teacher


def recordings(n):
    """Unlabelled field recordings; one recording is 24 consecutive frames of one or two kinds."""
    for _ in range(n):
        kinds = torch.randint(0, CLASSES, (2,))
        yield draw(kinds[torch.randint(0, 2, (24,))])


def main():
    val_y = torch.randint(0, CLASSES, (1500,))
    val = (draw(val_y), val_y)
    distiller = Distiller(train_teacher(val), Student())
    opt = torch.optim.AdamW(distiller.student.parameters(), lr=2e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=10)
    for epoch in range(10):
        distiller.train()
        total = 0.0
        for xb in recordings(150):
            loss = distiller(xb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        sched.step()
        print(f"epoch {epoch} kd {total / 150:.4f} student error {error(distiller.student, *val):.4f}")
    print("RESULT", error(distiller.student, *val))


main()
