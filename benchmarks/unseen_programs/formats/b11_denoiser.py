import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(101)

LENGTH = 32


def clean_signals(n):
    pos = torch.linspace(0, 1, LENGTH)
    freq = torch.rand(n, 3, 1) * 20
    amp = torch.randn(n, 3, 1)
    phase = torch.rand(n, 3, 1) * 6.28
    return (amp * torch.sin(freq * pos + phase)).sum(1)


def corrupt(x):
    level = torch.rand(len(x), 1) * 0.9 + 0.1
    return x + level * torch.randn_like(x), level


class Denoiser(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.inp = nn.Linear(LENGTH + 1, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(2)
        )
        self.out = nn.Linear(width, LENGTH)

    def forward(self, noisy, level):
        h = self.inp(torch.cat([noisy, level], dim=1))
        for block in self.blocks:
            h = h + block(h)
        return noisy - self.out(h)


@torch.no_grad()
def evaluate(model, n=500):
    model.eval()
    torch.manual_seed(2024)
    x = clean_signals(n)
    noisy, level = corrupt(x)
    error = (model(noisy, level) - x).square().mean().item()
    model.train()
    return error


def stream(batch):
    while True:
        x = clean_signals(batch)
        noisy, level = corrupt(x)
        yield x, noisy, level


def train(steps=1000, check=20):
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    source = stream(32)
    smooth = None
    for step in range(1, steps + 1):
        x, noisy, level = next(source)
        loss = (model(noisy, level) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if step % check == 0:
            error = evaluate(model)
            if step % 100 == 0:
                print(f"step {step} train {smooth:.4f} val {error:.4f}")
    return evaluate(model)


print("RESULT", train())
