"""Semi-supervised training with a mean teacher and pseudo-label masks; report test error."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(66)
CLASSES, DIM = 6, 24
CENTERS = 1.1 * torch.randn(CLASSES, DIM)


def draw(n, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    return CENTERS[y] + 0.9 * torch.randn(n, DIM, generator=gen), y


def weak(x):
    return x + 0.1 * torch.randn_like(x)


def strong(x):
    return (x + 0.5 * torch.randn_like(x)) * (torch.rand_like(x) > 0.2)


class EMATeacher:
    def __init__(self, student, decay):
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, student):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for t, s in zip(self.model.parameters(), student.parameters()):
            t.mul_(d).add_(s, alpha=1 - d)


def main(steps=240, threshold=0.9, weight=1.0):
    gen = torch.Generator().manual_seed(0)
    lx, ly = draw(36, gen)
    ux, _ = draw(1500, gen)
    tx, ty = draw(600, gen)
    student = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64),
                            nn.ReLU(), nn.Linear(64, CLASSES))
    teacher = EMATeacher(student, 0.98)
    opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True,
                          weight_decay=5e-4)
    for step in range(1, steps + 1):
        i, j = torch.randint(0, 36, (24,)), torch.randint(0, 1500, (96,))
        sup = F.cross_entropy(student(weak(lx[i])), ly[i])
        with torch.no_grad():
            conf, pseudo = teacher.model(weak(ux[j])).softmax(-1).max(-1)
            mask = (conf >= threshold).float()
        unsup = (F.cross_entropy(student(strong(ux[j])), pseudo, reduction="none") * mask).mean()
        loss = sup + weight * unsup
        opt.zero_grad()
        loss.backward()
        opt.step()
        teacher.update(student)
        if step % 40 == 0:
            print(f"step {step} sup {sup.item():.4f} unsup {unsup.item():.4f} "
                  f"mask {mask.mean().item():.2f}")
    teacher.model.eval()
    with torch.no_grad():
        print("RESULT", (teacher.model(tx).argmax(1) != ty).float().mean().item())


if __name__ == "__main__":
    main()
