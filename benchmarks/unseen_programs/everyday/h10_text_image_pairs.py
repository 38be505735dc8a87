"""Align captions and feature vectors with a symmetric contrastive loss in fp16 autocast."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(110)

WORDS, LENGTH, FEATURES, DIM = 80, 7, 24, 32
STEPS, BATCH = 250, 64


def pairs(n):
    """A caption names attributes; the features are a noisy function of them."""
    g = torch.Generator().manual_seed(51)
    meaning = torch.randn(WORDS, 10, generator=g)
    project = torch.randn(10, FEATURES, generator=g)
    words = torch.randint(1, WORDS, (n, LENGTH))
    keep = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (n, 1))
    words = words * keep
    sense = (meaning[words] * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True) ** 0.5
    return words, torch.tanh(sense @ project / 3)


class TextTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, DIM, padding_idx=0)
        self.query = nn.Parameter(0.1 * torch.randn(DIM))
        self.out = nn.Sequential(nn.Linear(2 * DIM, 64), nn.ReLU(), nn.Linear(64, DIM))

    def forward(self, words):
        h = self.embed(words)
        score = (h @ (self.query / DIM ** 0.5)).float()
        weight = score.masked_fill(words == 0, float("-inf")).softmax(dim=1)
        pooled = (weight.unsqueeze(-1) * h).sum(1)
        length = (words != 0).sum(1, keepdim=True) ** 0.5
        return self.out(torch.cat([pooled, h.sum(1) / length], dim=1))


class FeatureTower(nn.Module):
    def __init__(self):
        super().__init__()
        # cumulative statistics: momentum=None averages over all batches since the reset
        self.norm = nn.BatchNorm1d(FEATURES, momentum=None)
        self.net = nn.Sequential(nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, DIM))

    def forward(self, x):
        return self.net(self.norm(x))


text, vision = TextTower(), FeatureTower()
log_temperature = nn.Parameter(torch.tensor(math.log(10.0)))
params = [*text.parameters(), *vision.parameters(), log_temperature]
optimizer = torch.optim.AdamW(params, lr=3e-3, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS + 1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)


def similarity(words, features):
    with torch.autocast("cpu", dtype=torch.float16):
        a, b = text(words), vision(features)
    return F.normalize(a.float(), dim=1) @ F.normalize(b.float(), dim=1).t()


def contrastive(sim):
    """The classes are the other members of the batch, in both directions."""
    logits = sim * log_temperature.exp().clamp(max=50)
    captions = -torch.log_softmax(logits, dim=0).diagonal().mean()
    images = -torch.log_softmax(logits, dim=1).diagonal().mean()
    return 0.5 * (captions + images)


words, features = pairs(4000)
val_words, val_features = pairs(400)
for step in range(1, STEPS + 1):
    idx = torch.randint(0, len(words), (BATCH,))
    # augmentation is for training only: noise on the features
    noisy = features[idx] + 0.1 * torch.randn(BATCH, FEATURES)
    sim = similarity(words[idx], noisy)
    loss = contrastive(sim)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(params, 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    if step % 50 == 0:
        # angles are logged only; the clamp keeps the arccosine in its domain
        angle = torch.acos(sim.detach().diagonal().clamp(-1, 1)).mean()
        print(f"step {step} loss {loss.item():.4f} angle {angle.item():.3f}")

text.eval(), vision.eval()
with torch.no_grad():
    rank = similarity(val_words, val_features)
    wrong = (rank.argmax(1) != torch.arange(len(rank))).float().mean().item()
    val_loss = contrastive(rank).item()
print(f"validation error of retrieval {wrong:.3f}")
print(f"RESULT {val_loss:.5f}")
