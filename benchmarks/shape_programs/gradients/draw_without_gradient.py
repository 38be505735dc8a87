# Sequential latent model of a time series: each frame gets a latent code, a decoder rebuilds the frame.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Encoder(nn.Module):
    def __init__(self, frame, latent):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(frame, 48), nn.ELU(), nn.Linear(48, 2 * latent))

    def forward(self, x):
        mean, raw = self.net(x).chunk(2, -1)
        return mean, nn.functional.softplus(raw - 2.0) + 1e-3


class FrameModel(nn.Module):
    def __init__(self, frame=16, latent=4):
        super().__init__()
        self.encoder = Encoder(frame, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ELU(), nn.Linear(48, frame))

    def code(self, mean, std):
        return torch.normal(mean, std)

    def forward(self, x):
        mean, std = self.encoder(x)
        z = self.code(mean, std)
        kl = 0.5 * (mean ** 2 + std ** 2 - 2 * std.log() - 1).sum(-1)
        return self.decoder(z), kl


def series(n, gen):
    t = torch.linspace(0, 6.28, 16)
    phase = torch.rand(n, 1, generator=gen) * 6.28
    height = torch.rand(n, 1, generator=gen) + 0.5
    return height * torch.sin(t + phase) + 0.05 * torch.randn(n, 16, generator=gen)


gen = torch.Generator().manual_seed(0)
model = FrameModel()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(150):
    x = series(64, gen)
    rebuilt, kl = model(x)
    loss = ((rebuilt - x) ** 2).sum(-1).mean() + 0.01 * kl.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4), "kl", round(kl.mean().item(), 4))
with torch.no_grad():
    x = series(500, gen)
    print("RESULT", ((model(x)[0] - x) ** 2).sum(-1).mean().item())
