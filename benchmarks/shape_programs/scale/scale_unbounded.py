"""Next-token model on a noisy automaton; hyperparameters follow schedules."""
import torch
from torch import nn

torch.manual_seed(9)
torch.set_num_threads(1)
VOCAB, CONTEXT = 17, 4


class Scheduled:
    """A quantity that follows a function of the step, pushed somewhere after each step."""

    def __init__(self, function, push):
        self.function, self.push, self.step = function, push, 0

    def __call__(self):
        self.step += 1
        self.push(self.function(self.step))


def tokens(n):
    s = torch.randint(0, VOCAB, (n, CONTEXT + 1))
    s[:, -1] = (3 * s[:, -2] + s[:, -3] * (s[:, -2] % 2)) % VOCAB
    return s[:, :-1], s[:, -1]


class Model(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.net = nn.Sequential(nn.Linear(dim * CONTEXT, 96), nn.GELU(), nn.Linear(96, VOCAB))

    def forward(self, s):
        return self.net(self.embed(s).flatten(1))


def set_lr(value):
    for group in opt.param_groups:
        group["lr"] = value


x, y = tokens(4000)
xv, yv = tokens(800)
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
schedules = [
    Scheduled(lambda s: 1e-2 * min(1.0, s / 10), set_lr),
    Scheduled(lambda s: 2.0 ** (8 + s // 3), scaler.update),
]

for step in range(150):
    pick = torch.randint(0, len(x), (128,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        logits = model(x[pick])
    scaler.scale(nn.functional.cross_entropy(logits.float(), y[pick])).backward()
    scaler.step(opt)
    for schedule in schedules:
        schedule()

with torch.no_grad():
    print("RESULT", float(nn.functional.cross_entropy(model(xv), yv)))
