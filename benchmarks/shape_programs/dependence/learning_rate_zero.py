"""Contrastive sensor embeddings; the rate climbs over the epochs."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import LambdaLR

torch.manual_seed(0)
torch.set_num_threads(1)
gen = torch.Generator().manual_seed(2)
mix = torch.randn(6, 30, generator=gen)
codes = torch.randn(768, 6, generator=gen)


def view(z):
    return torch.tanh(z @ mix) + 0.3 * torch.randn(len(z), 30, generator=gen)


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x):
        return F.normalize(self.f(x), dim=-1)


def info_nce(a, b, temp=0.2):
    sim = a @ b.T / temp
    return F.cross_entropy(sim, torch.arange(len(a)))


EPOCHS, RAMP = 4, 3
model = Projector()
opt = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
sched = LambdaLR(opt, lambda epoch: min(1.0, epoch // RAMP))

for epoch in range(EPOCHS):
    for idx in torch.randperm(512, generator=gen).split(32):
        z = codes[:512][idx]
        loss = info_nce(model(view(z)), model(view(z)))
        opt.zero_grad()
        loss.backward()
        opt.step()
    sched.step()
    print(epoch, loss.item())

model.eval()
with torch.no_grad():
    parts = [info_nce(model(view(z)), model(view(z))) for z in codes[512:].split(32)]
print("RESULT", float(torch.stack(parts).mean()))
