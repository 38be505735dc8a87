# Classification of sounds by their loudness pattern; one fused normalisation with its own backward pass.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class FusedRMS(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        inverse = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, gain, inverse)
        return x * inverse * gain

    @staticmethod
    def backward(ctx, grad):
        x, gain, inverse = ctx.saved_tensors
        unit = x * inverse
        inner = grad * gain
        dx = inverse * (inner - unit * (inner * unit).mean(-1, keepdim=True))
        return dx, (grad * unit).flatten(0, -2).sum(0)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return FusedRMS.apply(x, self.gain)


class SoundNet(nn.Module):
    def __init__(self, samples=64, width=32, classes=3):
        super().__init__()
        self.bank = nn.Linear(samples, width)
        self.norm = RMSNorm(width)
        self.rest = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, wave):
        return self.rest(self.norm(self.bank(wave)))


def sounds(n, gen):
    y = torch.randint(0, 3, (n,), generator=gen)
    t = torch.linspace(0, 6.28, 64)
    loud = 500.0 * 10 ** (0.5 * torch.rand(n, 1, generator=gen))
    wave = torch.sin((1 + 2 * y[:, None]) * t) + 0.5 * torch.randn(n, 64, generator=gen)
    return loud * wave, y


gen = torch.Generator().manual_seed(9)
net = SoundNet()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(100):
    wave, y = sounds(48, gen)
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.cross_entropy(net(wave).float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
wave, y = sounds(300, gen)
with torch.no_grad(), torch.autocast("cpu", torch.float16):
    print("RESULT", nn.functional.cross_entropy(net(wave).float(), y).item())
