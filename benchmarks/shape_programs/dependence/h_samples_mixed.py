"""Time-major transformer over sensor traces, classified with in-batch prototypes."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
T, CLASSES, SHOTS = 12, 4, 6


def episode(gen):
    y = torch.arange(CLASSES).repeat_interleave(2 * SHOTS)
    freq = 0.4 + 0.5 * y.float()
    phase = torch.rand(len(y), generator=gen) * 6.28
    t = torch.arange(T, dtype=torch.float32)[:, None]
    now, later = freq * t + phase, freq * (t + 1) + phase
    x = torch.stack([now.sin(), now.cos(), later.sin(), later.cos()], -1)
    return x + 0.1 * torch.randn(x.shape, generator=gen), y


class Encoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.pos = nn.Parameter(torch.randn(T, 1, d) * 0.2)
        self.layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0)

    def forward(self, x):
        return self.layer(self.inp(x) + self.pos).mean(0)


def prototype_loss(z, y):
    z = z.view(CLASSES, 2 * SHOTS, -1)
    proto = z[:, :SHOTS].mean(1)
    query = z[:, SHOTS:].flatten(0, 1)
    logits = -torch.cdist(query, proto)
    return F.cross_entropy(logits, y.view(CLASSES, -1)[:, SHOTS:].flatten())


gen = torch.Generator().manual_seed(1)
model = Encoder()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
for step in range(100):
    x, y = episode(gen)
    loss = prototype_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, loss.item())
model.eval()
with torch.no_grad():
    print("RESULT", sum(float(prototype_loss(model(x), y)) for x, y in (episode(gen) for _ in range(10))) / 10)
