"""Match two recordings of the same sound (two microphones), embeddings in half precision."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
LENGTH, DIM = 64, 24


def recordings(n, gen):
    t = torch.arange(LENGTH) / LENGTH
    freq = 1 + 9 * torch.rand(n, 3, generator=gen)
    amp = torch.rand(n, 3, generator=gen)
    start = torch.rand(n, 3, generator=gen) * 6.28
    clean = (amp[..., None] * torch.sin(6.28 * freq[..., None] * t + start[..., None])).sum(1)
    loud = 0.2 + torch.rand(n, 1, generator=gen)
    gate = (torch.rand(n, 1, generator=gen) > 0.004).float()
    left = gate * loud * (clean + 0.2 * torch.randn(n, LENGTH, generator=gen))
    right = gate * (clean.roll(2, 1) + 0.2 * torch.randn(n, LENGTH, generator=gen))
    return left, right


def level(clips):
    return F.normalize(clips.half(), dim=-1) * 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(LENGTH, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, DIM))

    def forward(self, clips):
        with torch.autocast("cpu", torch.float16):
            z = self.net(level(clips))
        return F.normalize(z.float(), dim=-1)


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Encoder(), Encoder()
        self.log_temp = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return self.log_temp.exp() * self.left(a) @ self.right(b).T


def contrast(sim):
    target = torch.arange(len(sim))
    return (F.cross_entropy(sim, target) + F.cross_entropy(sim.T, target)) / 2


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(6)
    left, right = recordings(3000, gen)
    vl, vr = recordings(256, gen)
    model = Matcher()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
    for epoch in range(5):
        for idx in torch.randperm(len(left), generator=gen).split(64):
            loss = contrast(model(left[idx], right[idx]))
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        print("RESULT", contrast(model(vl, vr)).item())


main()
