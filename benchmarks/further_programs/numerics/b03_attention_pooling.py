import torch
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)


class MaskedPooling(nn.Module):
    """Attention pooling of a variable number of entries per record (a record may be empty)."""

    def __init__(self, d_in=6, d=32, heads=4):
        super().__init__()
        self.heads = heads
        self.embed = nn.Linear(d_in, d)
        self.query = nn.Parameter(torch.randn(heads, d // heads))
        self.key = nn.Linear(d, d)
        self.value = nn.Linear(d, d)
        self.out = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, mask):
        b, n, _ = x.shape
        h = torch.relu(self.embed(x))
        k = self.key(h).view(b, n, self.heads, -1)
        v = self.value(h).view(b, n, self.heads, -1)
        scores = torch.einsum("bnhd,hd->bhn", k, self.query.to(k.dtype))
        bias = ((1.0 - mask) * -1e9).to(scores.dtype)
        weights = torch.softmax(scores + bias[:, None], dim=-1)
        weights = weights * mask[:, None].to(weights.dtype)
        pooled = torch.einsum("bhn,bnhd->bhd", weights.to(v.dtype), v).flatten(1)
        return self.out(pooled).squeeze(-1)


def records(n, length=7):
    count = torch.randint(0, length + 1, (n,))
    count = torch.where(torch.rand(n) < 0.9, count.clamp(min=1), count)
    mask = (torch.arange(length)[None] < count[:, None]).float()
    x = torch.randn(n, length, 6) * mask[..., None]
    gate = torch.where(mask > 0, 2 * x[..., 0], torch.full_like(mask, -20.0)).softmax(-1)
    return x, mask, (gate * x[..., 1] * mask).sum(-1) + 0.2 * count


model = MaskedPooling()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
data = records(1500)
for epoch in range(12):
    losses = []
    for idx in torch.randperm(1500).split(50):
        x, mask, y = (t[idx] for t in data)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x, mask)
        loss = nn.functional.mse_loss(pred.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    print(epoch, sum(losses) / len(losses))

x, mask, y = records(1000)
with torch.no_grad():
    keep = mask.sum(1) > 0
    print("RESULT", nn.functional.mse_loss(model(x[keep], mask[keep]), y[keep]).item())
