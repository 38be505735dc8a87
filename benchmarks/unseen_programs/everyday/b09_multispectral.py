"""Classify land cover from 10-bit multispectral tiles with attention over patches."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(99)

BANDS, PATCHES, COVER, DIM = 12, 16, 5, 64


def make_tiles(n):
    g = torch.Generator().manual_seed(2)
    signature = 55 + 200 * torch.rand(COVER, BANDS, generator=g)
    background = 55 + 200 * torch.rand(COVER, BANDS, generator=g)
    cover = torch.randint(0, COVER, (n,))
    other = torch.randint(0, COVER, (n,))
    share = 0.35 + 0.5 * torch.rand(n, 1)
    inside = (torch.rand(n, PATCHES) < share).float().unsqueeze(-1)
    tile = inside * signature[cover][:, None] + (1 - inside) * background[other][:, None]
    gain = 1 + 0.15 * torch.randn(n, 1, 1)
    tile = gain * tile + 12 * torch.randn(n, PATCHES, BANDS)
    return tile.clamp(0, 1023), cover


class PatchAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self.scale = dim ** -0.5

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        logits = q @ k.transpose(-2, -1)
        weights = (logits * self.scale).softmax(dim=-1)
        return self.o(weights.to(v.dtype) @ v)


class CoverNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(BANDS, DIM)
        self.attn = PatchAttention(DIM)
        self.norm = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, DIM))
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, COVER))

    def forward(self, tile):
        h = self.embed(tile)
        h = self.norm(h + self.attn(h))
        h = h + self.mlp(h)
        return self.head(h.mean(dim=1))


def evaluate(model, tiles, cover):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        logits = model(tiles)
    model.train()
    return F.cross_entropy(logits.float(), cover).item()


def fit(steps=110, batch=32):
    tiles, cover = make_tiles(1600)
    val = make_tiles(400)
    model = CoverNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(steps):
        idx = torch.randint(0, len(tiles), (batch,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(tiles[idx]).float(), cover[idx])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if (step + 1) % 30 == 0:
            print(f"[{step + 1}] loss {loss.item():.4f} val {evaluate(model, *val):.4f}")
    return evaluate(model, *val)


if __name__ == "__main__":
    print(f"RESULT {fit():.5f}")
