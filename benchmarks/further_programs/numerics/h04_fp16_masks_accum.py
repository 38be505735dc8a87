"""fp16 with a scaler, accumulation over four micro-batches, finfo.min masks and clipping after unscale_."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

MICRO, ACCUM, STEPS = 16, 4, 130


class SetModel(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(5, d)
        self.q, self.k, self.v = (nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 1)

    def forward(self, x, valid):
        h = self.inp(x)
        s = self.q(h) @ self.k(h).transpose(1, 2) / h.shape[-1] ** 0.5
        s = s.masked_fill(~valid[:, None, :], torch.finfo(s.dtype).min)
        h = self.norm(h + s.softmax(-1).to(h.dtype) @ self.v(h))
        m = valid[..., None].to(h.dtype)
        pooled = (torch.relu(h) * m).sum(1) / m.sum(1).clamp(min=1)
        return self.out(pooled).squeeze(-1)


def batch(n):
    count = torch.randint(0, 7, (n,))
    valid = torch.arange(6)[None] < count[:, None]
    x = torch.randn(n, 6, 5) * valid[..., None]
    y = (x[..., 0] * torch.sigmoid(2 * x[..., 1]) * valid).sum(1) / count.clamp(min=1)
    return x, valid, y


def train():
    model = SetModel()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=50)
    for step in range(STEPS):
        opt.zero_grad(set_to_none=True)
        for _ in range(ACCUM):
            x, valid, y = batch(MICRO)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x, valid)
                loss = F.mse_loss(out.float(), y) / ACCUM
            scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 40 == 0:
            print(step, loss.item() * ACCUM, scaler.get_scale())
    return model.eval()


model = train()
with torch.no_grad():
    x, valid, y = batch(3000)
    print("RESULT", F.mse_loss(model(x, valid), y).item())
