# Audio smoothing filter, learned with an error at several resolutions per step.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Tally:
    def __init__(self):
        self.value = 0.0
        self.parts = []

    def add(self, part):
        self.value = self.value + part
        self.parts.append(part.item())
        return self.value


class Denoiser(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, channels, 9, padding=4), nn.Tanh(),
            nn.Conv1d(channels, channels, 9, padding=4), nn.Tanh(),
            nn.Conv1d(channels, 1, 9, padding=4),
        )

    def forward(self, x):
        return self.net(x[:, None])[:, 0]


def waves(n, gen, length=128):
    t = torch.arange(length) / length
    pitch = 2 + 6 * torch.rand(n, 1, generator=gen)
    phase = 6.28 * torch.rand(n, 1, generator=gen)
    clean = torch.sin(6.28 * pitch * t + phase)
    return clean + 0.5 * torch.randn(n, length, generator=gen), clean


def at_scale(signal, scale):
    return nn.functional.avg_pool1d(signal[:, None], scale)[:, 0]


gen = torch.Generator().manual_seed(8)
model = Denoiser()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scales = (1, 2, 4, 8, 16, 32)
for step in range(100):
    noisy, clean = waves(16, gen)
    out = model(noisy)
    opt.zero_grad()
    tally = Tally()
    for scale in scales:
        error = nn.functional.mse_loss(at_scale(out, scale), at_scale(clean, scale))
        tally.add(error).backward(retain_graph=True)
    opt.step()
    if step % 20 == 0:
        print(step, [round(v, 4) for v in tally.parts])
noisy, clean = waves(100, gen)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(noisy), clean).item())
