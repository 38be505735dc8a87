"""Denoising diffusion on two moons with accelerate in bf16 mixed precision."""
import torch

torch.set_num_threads(1)
torch.manual_seed(12)

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TIMESTEPS = 100


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    angle = torch.pi * torch.rand(n, generator=g)
    upper = torch.rand(n, generator=g) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    pts = torch.stack([x - 0.5, y - 0.25], dim=1) * 1.3
    return pts + 0.05 * torch.randn(n, 2, generator=g)


class NoiseSchedule:
    def __init__(self):
        self.keep = torch.cumprod(1 - torch.linspace(1e-3, 0.08, TIMESTEPS), dim=0)

    def add_noise(self, x, noise, t):
        k = self.keep[t][:, None]
        return k.sqrt() * x + (1 - k).sqrt() * noise


class Denoiser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.time = nn.Embedding(TIMESTEPS, 32)
        self.inp = nn.Linear(2 + 32, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        h = nn.functional.silu(self.inp(torch.cat([x, self.time(t)], dim=1)))
        for layer in self.mid:
            h = h + nn.functional.silu(layer(h))
        return self.out(h)


@torch.no_grad()
def denoising_error(denoiser, schedule, data, weight_dtype):
    g = torch.Generator().manual_seed(77)
    noise = torch.randn(data.shape, generator=g)
    t = torch.randint(0, TIMESTEPS, (len(data),), generator=g)
    pred = denoiser(schedule.add_noise(data, noise, t).to(weight_dtype), t)
    return (pred.float() - noise).pow(2).mean().item()


def main():
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    weight_dtype = torch.float32
    if accelerator.mixed_precision == "bf16":
        weight_dtype = torch.bfloat16
    schedule, denoiser = NoiseSchedule(), Denoiser()
    denoiser.to(dtype=weight_dtype)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-4, weight_decay=1e-4)
    loader = DataLoader(TensorDataset(moons(12800, 1)), batch_size=256, shuffle=True)
    denoiser, optimizer, loader = accelerator.prepare(denoiser, optimizer, loader)
    valid = moons(4000, 2)

    step = 0
    for epoch in range(8):
        for (x,) in loader:
            noise = torch.randn_like(x)
            t = torch.randint(0, TIMESTEPS, (len(x),))
            noisy = schedule.add_noise(x, noise, t).to(weight_dtype)
            loss = nn.functional.mse_loss(denoiser(noisy, t).float(), noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(denoiser.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 100 == 0:
                accelerator.print(f"step {step} loss {loss.item():.4f}")
    error = denoising_error(denoiser, schedule, valid, weight_dtype)
    print(f"RESULT {error:.4f}")


if __name__ == "__main__":
    main()
