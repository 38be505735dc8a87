"""Tag sounds with mixup, soft targets and an average of weights with a rising decay."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(108)

BINS, FRAMES, TAGS = 16, 16, 6
STEPS, BATCH = 260, 64


def sounds(n):
    g = torch.Generator().manual_seed(41)
    patterns = torch.relu(torch.randn(TAGS, BINS, 4, generator=g))
    tags = (torch.rand(n, TAGS) < 0.25).float()
    onset = torch.randint(0, FRAMES - 4, (n, TAGS))
    spec = 0.5 * torch.rand(n, BINS, FRAMES)
    for tag in range(TAGS):
        for i in torch.nonzero(tags[:, tag]).flatten().tolist():
            spec[i, :, onset[i, tag]:onset[i, tag] + 4] += patterns[tag]
    return torch.log(spec + 0.05).unsqueeze(1), tags


class TagNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, (BINS, 4)), nn.GroupNorm(4, width), nn.GELU(),
            nn.Conv2d(width, width, (1, 3), padding=(0, 1)), nn.GELU())
        self.out = nn.Linear(2 * width, TAGS)

    def forward(self, x):
        h = self.body(x).squeeze(2)
        return self.out(torch.cat([h.amax(-1), h.mean(-1)], dim=1))


def mixup(x, y, strength=0.3):
    """Each sample is mixed with another one, and so is its target."""
    lam = torch.distributions.Beta(strength, strength).sample((len(x),))
    lam = torch.maximum(lam, 1 - lam)
    other = torch.randperm(len(x))
    mixed = lam.view(-1, 1, 1, 1) * x + (1 - lam).view(-1, 1, 1, 1) * x[other]
    return mixed, lam[:, None] * y + (1 - lam)[:, None] * y[other]


@torch.no_grad()
def evaluate(model, x, y):
    return F.binary_cross_entropy_with_logits(model(x), y).item()


x, tags = sounds(2500)
val_x, val_tags = sounds(500)
mean, std = x.mean(), x.std()
# the statistics of the training set are used for both sets
x, val_x = (x - mean) / std, (val_x - mean) / std

model = TagNet()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=2e-4)

for step in range(STEPS):
    idx = torch.randint(0, len(x), (BATCH,))
    bx, by = mixup(x[idx], tags[idx])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(bx)
        loss = F.binary_cross_entropy_with_logits(logits, by)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    # in the first steps the decay is low, so that the average forgets the initial weights
    decay = min(0.97, (1 + step) / (10 + step))
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p, 1 - decay)
    if step % 65 == 64:
        print(f"step {step + 1} loss {loss.item():.4f} val {evaluate(model, val_x, val_tags):.4f} "
              f"average {evaluate(average, val_x, val_tags):.4f}")

print(f"RESULT {evaluate(average, val_x, val_tags):.5f}")
