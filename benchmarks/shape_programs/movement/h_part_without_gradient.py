"""Vector-quantised autoencoder: straight-through codes, codebook trained by its own term."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(31)
centres = torch.randn(12, 10)
data = centres[torch.randint(0, 12, (1500,))] + 0.15 * torch.randn(1500, 10)


class Quantiser(nn.Module):
    def __init__(self, codes, dim):
        super().__init__()
        self.book = nn.Embedding(codes, dim)

    def forward(self, z):
        nearest = torch.cdist(z, self.book.weight).argmin(1)
        q = self.book(nearest)
        term = (q - z.detach()).square().mean() + 0.25 * (z - q.detach()).square().mean()
        return z + (q - z).detach(), term


encoder = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 10))
quantiser = Quantiser(32, 4)
with torch.no_grad():
    quantiser.book.weight.copy_(encoder(data[:32]))
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *quantiser.parameters()], lr=8e-3)
for step in range(150):
    v = data[torch.randint(0, 1200, (96,))]
    z, term = quantiser(encoder(v))
    loss = (decoder(z) - v).square().mean() + term
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    v = data[1200:]
    print("RESULT", (decoder(quantiser(encoder(v))[0]) - v).square().mean().item())
