"""Trains an fp16 model by hand, with fp32 master weights and a static loss scale."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

SCALE = 1024.0


def series(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=gen)
    y = (x[:, :3].sum(1) * 0.5).tanh() + 0.5 * x[:, 4] * x[:, 5] + 0.1 * torch.randn(
        n, generator=gen)
    return x, y.unsqueeze(1)


class HalfTraining:
    """Forward and backward in fp16; the step is made on fp32 copies of the weights."""

    def __init__(self, model, lr):
        self.model = model.half()
        self.half = list(self.model.parameters())
        self.master = [p.detach().float().clone() for p in self.half]
        self.optimizer = torch.optim.Adam(self.master, lr=lr)
        self.skipped = 0

    def step(self, x, y):
        out = self.model(x.half())
        loss = F.mse_loss(out.float(), y)
        for p in self.half:
            p.grad = None
        (loss * SCALE).backward()
        for m, p in zip(self.master, self.half):
            m.grad = p.grad.float() / SCALE
        if not all(m.grad.isfinite().all() for m in self.master):
            self.skipped += 1
            return loss.item()
        nn.utils.clip_grad_norm_(self.master, 5.0)
        self.optimizer.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.half):
                p.copy_(m)
        return loss.item()

    @torch.no_grad()
    def validate(self, x, y):
        return F.mse_loss(self.model(x.half()).float(), y).item()


train_x, train_y = series(6000, 1)
val_x, val_y = series(1000, 2)
net = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
                    nn.Linear(64, 1))
run = HalfTraining(net, lr=3e-3)
for epoch in range(6):
    for chunk in torch.randperm(len(train_x)).split(120):
        loss = run.step(train_x[chunk], train_y[chunk])
    print(f"epoch {epoch} loss {loss:.4f} val {run.validate(val_x, val_y):.4f} "
          f"skipped {run.skipped}")
print("RESULT", round(run.validate(val_x, val_y), 4))
