# Self-conditioned denoising of small signals: a first guess goes back into the network as an input.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
LENGTH = 16


class LowWeights:
    def __init__(self, dtype):
        self.dtype = dtype
        self.store = {}

    def get(self, weight):
        if weight not in self.store:
            self.store[weight] = weight.to(self.dtype)
        return self.store[weight]

    def refresh(self):
        self.store.clear()


low = LowWeights(torch.bfloat16)


class LowLinear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x.to(low.dtype), low.get(self.weight)).float() + self.bias


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(LowLinear(2 * LENGTH + 1, width), nn.SiLU(), LowLinear(width, width), nn.SiLU(), LowLinear(width, LENGTH))

    def forward(self, x, level, guess):
        return self.net(torch.cat([x, guess, level], 1))


def signals(n, gen):
    t = torch.linspace(0, 6.28, LENGTH)
    return torch.sin(t + 6.28 * torch.rand(n, 1, generator=gen)) * torch.sign(torch.randn(n, 1, generator=gen))


def denoise_loss(model, clean, gen):
    level = torch.rand(len(clean), 1, generator=gen)
    noisy = clean + level * torch.randn(clean.shape, generator=gen)
    guess = torch.zeros_like(clean)
    with torch.no_grad():
        guess = model(noisy, level, guess)
    return nn.functional.mse_loss(model(noisy, level, guess), clean)


gen = torch.Generator().manual_seed(3)
model = Denoiser()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
for step in range(120):
    low.refresh()
    loss = denoise_loss(model, signals(64, gen), gen)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
low.refresh()
with torch.no_grad():
    print("RESULT", denoise_loss(model, signals(500, gen), gen).item())
