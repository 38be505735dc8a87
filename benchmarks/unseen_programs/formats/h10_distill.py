import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(28)
torch.set_num_threads(1)

T = 3.0


def two_moons_in_noise(n, gen, labelled):
    x = torch.randn(n, 10, generator=gen)
    y = ((x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] + x[:, 3].abs() > 0.8).long())
    return (x, y) if labelled else x


def net(width, depth=2):
    layers, last = [], 10
    for _ in range(depth):
        layers += [nn.Linear(last, width), nn.ReLU()]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, 4))


class RoundingEMA:
    """A bfloat16 average that is rounded up or down at random, so that small steps count in the mean."""

    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).bfloat16().requires_grad_(False)
        self.decay = decay

    @staticmethod
    def round_at_random(x):
        bits = x.contiguous().view(torch.int32)
        bits = (bits + torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)) & -65536
        return bits.view(torch.float32).bfloat16()

    @torch.no_grad()
    def update(self, source):
        for avg, p in zip(self.model.parameters(), source.parameters()):
            exact = avg.float().lerp(p.detach(), 1 - self.decay)
            avg.copy_(self.round_at_random(exact))


def train_teacher(x, y, gen):
    teacher = net(96)
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(900):
        idx = torch.randint(0, len(x), (128,), generator=gen)
        opt.zero_grad()
        F.cross_entropy(teacher(x[idx]), y[idx]).backward()
        opt.step()
    return teacher.eval().requires_grad_(False).bfloat16()


def distill(teacher, unlabelled, gen):
    student = net(40)
    ema = RoundingEMA(student, 0.99)
    opt = torch.optim.Adam(student.parameters(), lr=4e-3)
    for step in range(1100):
        x = unlabelled[torch.randint(0, len(unlabelled), (128,), generator=gen)]
        with torch.autocast("cpu", torch.bfloat16):
            mine = student(x)
        theirs = teacher(x.bfloat16())
        loss = F.kl_div((mine.float() / T).log_softmax(1), (theirs.float() / T).softmax(1), reduction="batchmean") * T * T
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(student)
        if step % 200 == 0:
            print(step, f"{loss.item():.4f}")
    return ema.model.float()


def main():
    gen = torch.Generator().manual_seed(2)
    teacher = train_teacher(*two_moons_in_noise(6000, gen, True), gen)
    final = distill(teacher, two_moons_in_noise(12000, gen, False), gen)
    x, y = two_moons_in_noise(2000, gen, True)
    with torch.no_grad():
        a = (teacher(x.bfloat16()).argmax(1) != y).float().mean().item()
        b = (final(x).argmax(1) != y).float().mean().item()
    print("teacher", round(a, 4))
    print("RESULT", b)


main()
