"""Pretrains a masked autoencoder on image patches with normalised pixel targets."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(127)

SIZE, PATCH, DIM, MASK_RATIO = 24, 4, 48, 0.5
GRID = SIZE // PATCH


def images(n):
    t = torch.linspace(0, 6.28, SIZE)
    yy, xx = torch.meshgrid(t, t, indexing="ij")
    k = torch.randint(1, 3, (n, 2, 1, 1)).float()
    arg = k[:, 0] * xx + (k[:, 1] + 0.5) * yy + 6.28 * torch.rand(n, 1, 1)
    return (torch.sin(arg) + 0.02 * torch.randn(n, SIZE, SIZE)).unsqueeze(1)


def patchify(x):
    return F.unfold(x, PATCH, stride=PATCH).transpose(1, 2)


class MAE(nn.Module):
    def __init__(self, norm_pix_loss=True):
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, 0.0, "gelu", batch_first=True,
                                                   norm_first=True)
        self.embed = nn.Linear(PATCH * PATCH, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(1, GRID * GRID, DIM))
        self.decoder_pos = nn.Parameter(0.02 * torch.randn(1, GRID * GRID, DIM))
        self.encoder = nn.ModuleList([layer()])
        self.decoder = nn.ModuleList([layer()])
        self.mask_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.head = nn.Linear(DIM, PATCH * PATCH)
        self.norm_pix_loss = norm_pix_loss

    def random_masking(self, x):
        n, length, dim = x.shape
        keep = int(length * (1 - MASK_RATIO))
        shuffle = torch.rand(n, length).argsort(1)
        restore = shuffle.argsort(1)
        kept = x.gather(1, shuffle[:, :keep, None].expand(-1, -1, dim))
        mask = torch.ones(n, length)
        mask[:, :keep] = 0
        return kept, mask.gather(1, restore), restore

    def forward(self, imgs):
        patches = patchify(imgs)
        x, mask, restore = self.random_masking(self.embed(patches) + self.pos)
        for block in self.encoder:
            x = block(x)
        fill = self.mask_token.expand(len(x), restore.shape[1] - x.shape[1], -1)
        x = torch.cat([x, fill], 1).gather(1, restore[..., None].expand(-1, -1,
                                                                        DIM)) + self.decoder_pos
        for block in self.decoder:
            x = block(x)
        target = patches
        if self.norm_pix_loss:
            mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
            target = (target - mean) / (var + 1e-4).sqrt()
        loss = ((self.head(x) - target) ** 2).mean(-1)
        return (loss * mask).sum() / mask.sum()


train, val = images(2000), images(200)
model = MAE()
decay = [p for p in model.parameters() if p.ndim == 2]
plain = [p for p in model.parameters() if p.ndim != 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05},
                               {"params": plain, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 330, pct_start=0.1)
for step in range(1, 331):
    loss = model(train[torch.randint(0, len(train), (32,))])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 66 == 0:
        with torch.no_grad():
            v = model(val).item()
        print(f"step {step} loss {loss.item():.4f} val {v:.4f}")
print("RESULT", round(v, 5))
