"""Tell four machine noises apart. The clips are 16-bit samples as they come out of the wav files."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(20)
torch.set_num_threads(1)


def clips(n, length=256):
    kind = torch.randint(0, 4, (n,))
    t = torch.arange(length) / length
    pitch = (12 + 9 * kind + torch.randn(n))[:, None]
    wave = torch.sin(2 * math.pi * (pitch * t + torch.rand(n, 1))) + 0.5 * torch.randn(n, length)
    wave = wave / wave.abs().amax(1, keepdim=True)
    return (wave * 32767).to(torch.int16), kind


class Ear(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = nn.Conv1d(1, 32, 32, stride=8)
        nn.init.normal_(self.frontend.weight, std=32**-0.5)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(64, 4)

    def forward(self, pcm):
        h = self.norm(self.frontend(pcm.float().unsqueeze(1))).relu()
        return self.head(torch.cat([h.mean(2), h.amax(2)], 1))


def main():
    net = Ear()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(90):
        pcm, kind = clips(48)
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(net(pcm).float(), kind)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 30 == 0:
            print(step, loss.item())
    net.eval()
    pcm, kind = clips(300)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        print("RESULT", F.cross_entropy(net(pcm).float(), kind).item())


main()
