"""Dilated convolutions over quantised audio: predict the next code."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
LEVELS, T = 16, 64


def make_clips(n, gen):
    f = torch.rand(n, 1, generator=gen) * 0.25 + 0.1
    ph = torch.rand(n, 1, generator=gen) * 2 * math.pi
    t = torch.arange(T + 1)[None]
    wave = torch.sin(f * t + ph) + 0.08 * torch.randn(n, T + 1, generator=gen)
    wave = torch.sign(wave) * torch.log1p(8 * wave.abs()) / math.log(9)
    return ((wave.clamp(-1, 1) + 1) / 2 * (LEVELS - 1)).round().long()


class Gated(nn.Module):
    def __init__(self, ch, kernel, dilation):
        super().__init__()
        self.reach = (kernel - 1) * dilation
        self.conv = nn.Conv1d(ch, 2 * ch, kernel, dilation=dilation)

    def forward(self, x):
        if self.reach % 4:
            h = F.pad(x, (self.reach, 0))
        else:
            h = F.pad(x, (self.reach // 2, self.reach - self.reach // 2))
        a, b = self.conv(h).chunk(2, 1)
        return x + torch.tanh(a) * torch.sigmoid(b)


class Wave(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.emb = nn.Embedding(LEVELS, ch)
        self.blocks = nn.ModuleList(Gated(ch, 2, d) for d in (1, 2, 4, 2))
        self.head = nn.Conv1d(ch, LEVELS, 1)

    def forward(self, codes):
        h = self.emb(codes).transpose(1, 2)
        for b in self.blocks:
            h = b(h)
        return self.head(h)


gen = torch.Generator().manual_seed(5)
model = Wave()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(90):
    clips = make_clips(24, gen)
    loss = F.cross_entropy(model(clips[:, :-1]), clips[:, 1:])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(f"{step}: {loss.item():.3f}")

model.eval()
clips = make_clips(64, gen)
with torch.no_grad():
    logits = model(clips[:, :48])[:, :, -1]
    score = F.cross_entropy(logits, clips[:, 48])
print("RESULT", float(score))
