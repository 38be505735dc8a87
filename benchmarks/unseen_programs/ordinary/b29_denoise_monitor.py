"""Denoising autoencoder for vibration sensors with a moving-average loss monitor."""
import math
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(107)

LENGTH, STEPS = 256, 160


def vibration(n):
    t = torch.arange(LENGTH) / LENGTH
    f = 2 + 6 * torch.rand(n, 3, 1)
    a = torch.rand(n, 3, 1)
    return (a * torch.sin(2 * math.pi * f * t + 6.28 * torch.rand(n, 3, 1))).sum(1)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(LENGTH, 128), nn.ReLU(),
            nn.Linear(128, 24), nn.ReLU(),
            nn.Linear(24, 128), nn.ReLU(),
            nn.Linear(128, LENGTH))

    def forward(self, x):
        return self.net(x)


class Monitor:
    def __init__(self, window):
        self.window = window
        self.losses = []

    def add(self, loss):
        self.losses.append(loss)

    def smoothed(self):
        recent = self.losses[-self.window:]
        return sum(recent) / len(recent)

    def best(self):
        return min(self.losses)


model = Denoiser()
monitor = Monitor(window=20)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(STEPS):
    clean = vibration(256)
    noisy = clean + 0.4 * torch.randn_like(clean)
    loss = nn.functional.mse_loss(model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    monitor.add(loss)
    if step % 40 == 0:
        print(f"step {step} smoothed {float(monitor.smoothed()):.4f}")

print(f"best batch {float(monitor.best()):.4f}")
clean = vibration(300)
with torch.no_grad():
    error = nn.functional.mse_loss(model(clean + 0.4 * torch.randn_like(clean)), clean)
print("RESULT", error.item())
