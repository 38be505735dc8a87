import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
torch.set_num_threads(1)


def spirals(n):
    t = torch.rand(n) * 2.5 + 0.4
    c = torch.randint(0, 3, (n,))
    a = 2.2 * t + c * 2.0944
    pts = torch.stack([t * a.cos(), t * a.sin()], 1) + 0.06 * torch.randn(n, 2)
    return TensorDataset(torch.cat([pts, pts.sin(), pts.cos(), (2 * pts).sin()], 1), c)


train_loader = DataLoader(spirals(1500), batch_size=32, shuffle=True)
xv, yv = spirals(600).tensors
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=40)
accum = 4
n = len(train_loader)
skipped = 0

for epoch in range(14):
    for i, (x, y) in enumerate(train_loader):
        size = min(accum, n - i // accum * accum)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y) / size
        scaler.scale(loss).backward()
        if (i + 1) % accum and i + 1 < n:
            continue
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        old = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < old
        optimizer.zero_grad(set_to_none=True)
    if epoch % 4 == 0:
        print(f"epoch {epoch} loss {loss.item() * size:.4f} scale {scaler.get_scale()} skipped {skipped}")

with torch.no_grad():
    print(f"result: {nn.functional.cross_entropy(model(xv), yv).item():.4f}")
