"""Spoken keyword detection straight from 16 bit PCM, mixed precision."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(13)

RATE, FRAME, WORDS = 1600, 160, 5


def recordings(n):
    word = torch.randint(0, WORDS, (n,))
    t = torch.arange(RATE) / RATE
    pitch = 60.0 + 45.0 * word[:, None] + 4 * torch.randn(n, 1)
    loud = 1500 + 1000 * torch.rand(n, 1)
    wave = loud * torch.sin(2 * torch.pi * pitch * t + 6.28 * torch.rand(n, 1))
    wave = wave + 450 * torch.randn(n, RATE)
    return wave.clamp(-32768, 32767).to(torch.int16), word


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        power = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(power + self.eps) * self.gain


class KeywordNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.frontend = nn.Linear(FRAME, dim)
        self.norm = RMSNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.norm2 = RMSNorm(dim)
        self.out = nn.Linear(dim, WORDS)

    def forward(self, pcm):
        frames = pcm.float().unfold(1, FRAME, FRAME // 2)
        h = F.gelu(self.norm(self.frontend(frames)))
        h = self.norm2(h + F.gelu(self.mix(h)))
        return self.out(h.mean(1))


wav, word = recordings(800)
wav_dev, word_dev = recordings(200)
model = KeywordNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

for epoch in range(6):
    for idx in torch.randperm(len(wav)).split(40):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(wav[idx]), word[idx])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print("epoch", epoch, "loss", loss.item(), "scale", scaler.get_scale())

with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    logits = model(wav_dev)
print("RESULT", F.cross_entropy(logits.float(), word_dev).item())
