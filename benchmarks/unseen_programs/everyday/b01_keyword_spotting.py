"""Train a small keyword spotting network on log-mel features with fp16 autocast."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

MELS, FRAMES, WORDS = 24, 40, 6
STEPS, BATCH = 160, 48


def synth_features(n):
    """Each word is a pair of formant tracks that rise or fall over time."""
    label = torch.randint(0, WORDS, (n,))
    t = torch.linspace(0, 1, FRAMES)
    mel = torch.arange(MELS).float().view(1, MELS, 1)
    start = 3.0 + 2.5 * label.float()
    slope = torch.where(label % 2 == 0, 5.0, -3.0) + 0.5 * torch.randn(n)
    track1 = start[:, None] + slope[:, None] * t
    track2 = 20.0 - 1.5 * label.float()[:, None] - slope[:, None] * t * 0.5
    feats = torch.exp(-0.5 * (mel - track1[:, None]) ** 2)
    feats = feats + torch.exp(-0.5 * (mel - track2[:, None]) ** 2)
    feats = feats + 0.6 * torch.randn(n, MELS, FRAMES)
    return feats, label


class KeywordNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inp = nn.Linear(MELS, width)
        self.mix = nn.ModuleList([nn.Linear(3 * width, width) for _ in range(2)])
        self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.out = nn.Linear(width, WORDS)

    def forward(self, x):
        h = self.inp(x.transpose(1, 2))
        for mix, norm in zip(self.mix, self.norm):
            left = F.pad(h, (0, 0, 1, 0))[:, :-1]
            right = F.pad(h, (0, 0, 0, 1))[:, 1:]
            h = h + F.relu(mix(torch.cat([left, norm(h), right], dim=-1)))
        return self.out(h.mean(dim=1))


def evaluate(model, feats, label):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        logits = model(feats)
    model.train()
    return F.cross_entropy(logits.float(), label).item()


def main():
    feats, label = synth_features(1200)
    val_feats, val_label = synth_features(300)
    mean, std = feats.mean((0, 2), keepdim=True), feats.std((0, 2), keepdim=True)
    feats, val_feats = (feats - mean) / std, (val_feats - mean) / std

    model = KeywordNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / STEPS)))
    scaler = torch.amp.GradScaler("cpu")

    for step in range(STEPS):
        idx = torch.randint(0, len(feats), (BATCH,))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(feats[idx])
            loss = F.cross_entropy(logits, label[idx])
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        if step % 40 == 0:
            val = evaluate(model, val_feats, val_label)
            print(f"step {step} loss {loss.item():.4f} val {val:.4f}")

    print(f"RESULT {evaluate(model, val_feats, val_label):.5f}")


if __name__ == "__main__":
    main()
