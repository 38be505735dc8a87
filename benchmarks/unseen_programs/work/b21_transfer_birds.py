"""Pretrain a spectrogram encoder on common species, then train a head for rare species."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(25)

parser = argparse.ArgumentParser()
parser.add_argument("--common", type=int, default=12)
parser.add_argument("--rare", type=int, default=5)
parser.add_argument("--pretrain-steps", type=int, default=200)
parser.add_argument("--head-steps", type=int, default=150)
args = parser.parse_args([])

BANDS, FRAMES = 16, 12


def songs(n, species, templates, gen):
    y = torch.randint(0, species, (n,), generator=gen)
    x = templates[y]
    shift = torch.randint(0, FRAMES, (n,), generator=gen)
    cols = (torch.arange(FRAMES)[None] + shift[:, None]) % FRAMES
    x = x.gather(2, cols[:, None, :].expand(-1, BANDS, -1))
    gain = 0.6 + 0.8 * torch.rand(n, 1, 1, generator=gen)
    return gain * x + 0.5 * torch.randn(x.shape, generator=gen), y


class SongNet(nn.Module):
    def __init__(self, species, width=48):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(BANDS, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU(),
            nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        )
        self.head = nn.Linear(width, species)

    def forward(self, x):
        return self.head(self.features(x))


def run(model, opt, data, steps, gen, name):
    x, y = data
    for step in range(steps):
        pick = torch.randint(0, len(x), (48,), generator=gen)
        loss = F.cross_entropy(model(x[pick]), y[pick])
        model.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"{name} step {step} loss {loss.item():.4f}")


def adapt(model, species):
    """Freeze the features and give the network a fresh head for the new species."""
    for p in model.parameters():
        p.requires_grad = False
    model.features.eval()
    opt = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    model.head = nn.Linear(model.head.in_features, species)
    return opt


gen = torch.Generator().manual_seed(250)
common_templates = 1.2 * torch.randn(args.common, BANDS, FRAMES, generator=gen).relu()
rare_templates = 1.2 * torch.randn(args.rare, BANDS, FRAMES, generator=gen).relu()

model = SongNet(args.common)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
common = songs(1500, args.common, common_templates, gen)
run(model, opt, common, args.pretrain_steps, gen, "pretrain")
with torch.no_grad():
    model.eval()
    check = songs(300, args.common, common_templates, gen)
    print("common species accuracy", (model(check[0]).argmax(1) == check[1]).float().mean().item())
    model.train()

rare = songs(400, args.rare, rare_templates, gen)
rare_val = songs(400, args.rare, rare_templates, gen)
opt = adapt(model, args.rare)
run(model, opt, rare, args.head_steps, gen, "head")
model.eval()
with torch.no_grad():
    logits = model(rare_val[0])
    print("rare species accuracy", (logits.argmax(1) == rare_val[1]).float().mean().item())
    print(f"RESULT {F.cross_entropy(logits, rare_val[1]).item():.5f}")
