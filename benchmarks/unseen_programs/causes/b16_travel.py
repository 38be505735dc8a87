"""Travel time on a road section as a mixture of two regimes (free, jam)."""
import math

import torch
from torch import nn

torch.set_num_threads(1)
ROOT = math.sqrt(2 * math.pi)


def trips(n, gen):
    hour = torch.rand(n, generator=gen) * 24
    wet = (torch.rand(n, generator=gen) < 0.3).float()
    rush = torch.exp(-((hour - 8) / 1.5) ** 2) + torch.exp(-((hour - 17) / 2) ** 2)
    jam = torch.rand(n, generator=gen) < 0.1 + 0.7 * rush
    free_time, jam_time = 3 + 0.5 * wet, 6 + 2 * rush
    spread = torch.where(jam, 0.9, 0.25) * torch.randn(n, generator=gen)
    time = torch.where(jam, jam_time, free_time) + spread
    detour = torch.rand(n, generator=gen) < 0.0015
    time = time + detour * (15 + 20 * torch.rand(n, generator=gen))
    mean = (0.1 + 0.7 * rush).clamp(max=1) * jam_time + (1 - (0.1 + 0.7 * rush).clamp(max=1)) * free_time
    x = torch.stack([torch.sin(hour / 24 * 2 * math.pi), torch.cos(hour / 24 * 2 * math.pi),
                     torch.sin(hour / 6 * math.pi), torch.cos(hour / 6 * math.pi), wet], 1)
    return x, time, mean


class TwoRegimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.share, self.centre, self.width = (nn.Linear(48, 2) for _ in range(3))
        with torch.no_grad():
            self.centre.bias.copy_(torch.tensor([3.0, 7.0]))
            self.width.bias.fill_(1.0)

    def forward(self, x):
        h = self.body(x)
        return self.share(h).softmax(-1), self.centre(h), self.width(h).exp()


def neg_log_likelihood(out, time):
    share, centre, width = out
    z = (time[:, None] - centre) / width
    density = share * torch.exp(-0.5 * z * z) / (width * ROOT)
    return -density.sum(-1).log().mean()


def epochs(n, size, total):
    for e in range(total):
        for idx in torch.randperm(n).split(size):
            yield e, idx


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(77)
    x, time, _ = trips(4000, gen)
    xv, _, mean = trips(1500, gen)
    net = TwoRegimes()
    opt = torch.optim.NAdam(net.parameters(), lr=3e-3)
    seen = -1
    for e, idx in epochs(len(x), 50, 12):
        loss = neg_log_likelihood(net(x[idx]), time[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if e != seen:
            print(f"epoch {e}: {loss.item():.4f}")
            seen = e
    with torch.no_grad():
        share, centre, _ = net(xv)
    print("RESULT", ((share * centre).sum(-1) - mean).abs().mean().item())


main()
