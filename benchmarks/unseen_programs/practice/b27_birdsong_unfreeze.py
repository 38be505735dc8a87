"""Train a birdsong classifier in two phases: the head alone, then the whole network."""
import torch
torch.set_num_threads(1)
torch.manual_seed(230)
from torch import nn
import torch.nn.functional as F

SPECIES, MELS, FRAMES = 8, 24, 20


def songs(n, seed):
    g = torch.Generator().manual_seed(55)
    start = torch.rand(SPECIES, generator=g) * MELS
    sweep = (torch.rand(SPECIES, generator=g) - 0.5) * 1.4
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(SPECIES, (n,), generator=g)
    time = torch.arange(FRAMES)
    pitch = start[kind, None] + sweep[kind, None] * time + torch.randn(n, 1, generator=g) * 1.2
    mel = torch.arange(MELS)[None, :, None]
    img = torch.exp(-((mel - pitch[:, None, :] % MELS) / 1.5) ** 2)
    mislabelled = torch.rand(n, generator=g) < 0.1
    other = torch.randint(SPECIES, (n,), generator=g)
    return (img + 0.6 * torch.randn(n, MELS, FRAMES, generator=g)).unsqueeze(1), \
        torch.where(mislabelled, other, kind)


class SongNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(24 * 6 * 5, 32), nn.ReLU(), nn.Linear(32, SPECIES))

    def forward(self, x):
        return self.head(self.stem(x))


def make_optimizer(model, lr):
    params = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


train, val = songs(1500, 1), songs(600, 2)
model = SongNet()
head_steps, full_steps, lr = 40, 260, 0.08

for p in model.stem.parameters():
    p.requires_grad_(False)
opt = make_optimizer(model, lr)
sched = torch.optim.lr_scheduler.PolynomialLR(opt, head_steps + full_steps, power=1.0)


def validate():
    with torch.no_grad():
        return F.cross_entropy(model(val[0]), val[1]).item()


for step in range(head_steps + full_steps):
    if step == head_steps:
        for p in model.stem.parameters():
            p.requires_grad_(True)
        opt = make_optimizer(model, opt.param_groups[0]["lr"])
        print(f"step {step} unfrozen, val {validate():.4f}")
    rows = torch.randint(len(train[1]), (16,))
    loss = F.cross_entropy(model(train[0][rows]), train[1][rows])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    sched.step()
    if step % 60 == 59:
        print(f"step {step + 1} lr {sched.get_last_lr()[0]:.4f} val {validate():.4f}")

print("RESULT", validate())
