"""Train a keyword spotter that is evaluated with the rounded weights of the edge device."""
import torch
torch.set_num_threads(1)
torch.manual_seed(361)
from torch import nn
import torch.nn.functional as F

WORDS, MELS, FRAMES = 7, 16, 16


class EdgeLinear(nn.Linear):
    """In eval mode the weight takes the 6-bit values of the device, in train mode its own."""

    def __init__(self, n_in, n_out, bits=6):
        super().__init__(n_in, n_out)
        self.levels = 2 ** (bits - 1) - 1
        self.kept = None

    def train(self, mode=True):
        super().train(mode)
        with torch.no_grad():
            if not mode and self.kept is None:
                self.kept = self.weight.detach().clone()
                step = self.weight.abs().amax(1, keepdim=True) / self.levels
                self.weight.copy_((self.weight / step).round() * step)
            elif mode and self.kept is not None:
                self.weight.copy_(self.kept)
                self.kept = None
        return self


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MELS, 24, 5, padding=2)
        self.fc1 = EdgeLinear(24 * 4, 48)
        self.fc2 = EdgeLinear(48, WORDS)

    def forward(self, x):
        h = F.max_pool1d(F.relu(self.conv(x)), 4).flatten(1)
        return self.fc2(F.relu(self.fc1(h)))


def keywords(n, gen):
    shapes = torch.randn(WORDS, MELS, FRAMES, generator=torch.Generator().manual_seed(5))
    y = torch.randint(WORDS, (n,), generator=gen)
    delay = torch.randint(-2, 3, (n,), generator=gen)
    x = torch.stack([shapes[k].roll(int(d), 1) for k, d in zip(y, delay)])
    return 0.6 * x + torch.randn(x.shape, generator=gen), y


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        value = F.cross_entropy(model(data[0]), data[1]).item()
    model.train()
    return value


gen = torch.Generator().manual_seed(1)
train, val = keywords(2500, gen), keywords(600, gen)
model = Spotter()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300)
for step in range(300):
    rows = torch.randint(len(train[1]), (48,))
    loss = F.cross_entropy(model(train[0][rows]), train[1][rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 29:
        print(f"step {step + 1} train {loss.item():.4f} on device {evaluate(model, val):.4f}")

print("RESULT", evaluate(model, val))
