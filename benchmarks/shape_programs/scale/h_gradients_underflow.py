"""Denoise strain gauge traces (values in strain, around 1e-4) with a small 1d conv net."""
import torch
from torch import nn

torch.manual_seed(5)
torch.set_num_threads(1)


def traces(n, length=48):
    t = torch.linspace(0, 1, length)
    k = torch.rand(n, 1) * 4 + 1
    clean = 1e-4 * torch.sin(2 * torch.pi * (k * t + torch.rand(n, 1)))
    noisy = clean + 6e-5 * torch.randn(n, length)
    return noisy.unsqueeze(1), clean.unsqueeze(1)


class Denoiser(nn.Module):
    def __init__(self, width=16, gauge=1e-4):
        super().__init__()
        self.gauge = gauge
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 9, padding=4), nn.GELU(),
            nn.Conv1d(width, width, 9, padding=4), nn.GELU(),
            nn.Conv1d(width, 1, 9, padding=4))

    def forward(self, x):
        return self.body(x / self.gauge).float() * self.gauge


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.Adam(model.parameters(), lr=lr, eps=1e-20)
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def fit_batch(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            pred = self.model(x)
        loss = nn.functional.mse_loss(pred, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


x, y = traces(256)
xv, yv = traces(64)
trainer = Trainer(Denoiser(), 3e-3)
for step in range(80):
    pick = torch.randint(0, len(x), (32,))
    trainer.fit_batch(x[pick], y[pick])

with torch.no_grad():
    err = (trainer.model(xv) - yv).pow(2).mean().sqrt()
print("RESULT", float(err) / 1e-4)
