import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
torch.set_num_threads(1)
EPOCHS, ACCUM = 14, 2


def moons(n):
    t = torch.rand(n) * 3.1416
    y = torch.randint(0, 2, (n,))
    x = torch.stack([t.cos() + y, (1 - 2 * y) * t.sin() + 0.4 * y], 1) + 0.12 * torch.randn(n, 2)
    return x, y


dl = DataLoader(TensorDataset(*moons(1000)), batch_size=32, shuffle=True)
xv, yv = moons(1000)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates_per_epoch = -(-len(dl) // ACCUM)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=EPOCHS * updates_per_epoch, pct_start=0.2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=60)

for epoch in range(EPOCHS):
    for i, (x, y) in enumerate(dl):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        last = i + 1 == len(dl)
        scaler.scale(loss / (1 if last and i % ACCUM == 0 else ACCUM)).backward()
        if (i + 1) % ACCUM == 0 or last:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() >= before:
                scheduler.step()
    if epoch % 4 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f} scale {scaler.get_scale():.0f}")

with torch.no_grad():
    print(f"result: {nn.functional.cross_entropy(model(xv), yv).item():.4f}")
