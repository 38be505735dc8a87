"""Count bright tiles in small pictures with a patch MLP."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
SIDE, P = 16, 4
TILES = (SIDE // P) ** 2


def pictures(n, gen):
    on = torch.rand(n, TILES, generator=gen) < torch.rand(n, 1, generator=gen)
    canvas = on.float().view(n, 1, 4, 4).repeat_interleave(P, 2).repeat_interleave(P, 3)
    canvas = canvas + 0.3 * torch.randn(canvas.shape, generator=gen)
    return canvas, on.sum(1).float() / TILES


def to_tiles(img):
    tiles = F.unfold(img, P, stride=P)
    return tiles.permute(2, 0, 1).reshape(len(img), TILES, P * P)


class Mixer(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Linear(P * P, d)
        self.tokens = nn.Sequential(nn.Linear(TILES, 32), nn.GELU(), nn.Linear(32, TILES))
        self.channels = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))
        self.head = nn.Linear(d, 1)

    def forward(self, img):
        h = self.embed(to_tiles(img))
        h = h + self.tokens(h.transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(h)
        return self.head(h.mean(1)).squeeze(1)


gen = torch.Generator().manual_seed(11)
model = Mixer()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(130):
    img, share = pictures(48, gen)
    loss = F.mse_loss(model(img), share)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(step, loss.item())

model.eval()
img, share = pictures(256, gen)
with torch.no_grad():
    print("RESULT", float(F.mse_loss(model(img), share)))
