"""Denoise 1-d signals; the step size follows a half cosine over the whole run."""
import math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(2)
t = torch.linspace(0, 1, 32)
clean = torch.sin(2 * math.pi * (torch.rand(512, 1, generator=gen) * 3 + 1) * t
                  + 6 * torch.rand(512, 1, generator=gen))
noisy = clean + 0.4 * torch.randn(clean.shape, generator=gen)


class HalfCosine:
    """Keeps the share of the run that is done and sets the rates from it."""

    def __init__(self, optimizer, peak, length):
        self.optimizer, self.peak, self.length = optimizer, peak, length
        self.done = 0

    def advance(self, batch):
        self.done += len(batch)
        share = min(1.0, self.done / self.length)
        for g in self.optimizer.param_groups:
            g["lr"] = self.peak * (0.001 + 0.999 * (1 + math.cos(math.pi * share)) / 2)


EPOCHS = 10
loader = DataLoader(TensorDataset(noisy[:384], clean[:384]), batch_size=32, shuffle=True)
net = nn.Sequential(nn.Conv1d(1, 24, 7, padding=3), nn.ReLU(), nn.Conv1d(24, 24, 7, padding=3),
                    nn.ReLU(), nn.Conv1d(24, 1, 7, padding=3))
opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
cosine = HalfCosine(opt, peak=4e-3, length=EPOCHS * len(loader))

for epoch in range(EPOCHS):
    for x, y in loader:
        loss = (net(x[:, None]).squeeze(1) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        cosine.advance(x)
    print(epoch, round(loss.item(), 4))

net.eval()
with torch.no_grad():
    print("RESULT", float((net(noisy[384:, None]).squeeze(1) - clean[384:]).pow(2).mean()))
