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
    feats = torch.cat([pts, pts.sin(), pts.cos(), (2 * pts).sin()], 1)
    return TensorDataset(feats, c)


train_loader = DataLoader(spirals(1536), batch_size=32, shuffle=True, drop_last=True)
xv, yv = spirals(600).tensors

model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
criterion = nn.CrossEntropyLoss()
accum_iter = 4

for epoch in range(14):
    running = 0.0
    optimizer.zero_grad(set_to_none=True)
    for i, (x, y) in enumerate(train_loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = criterion(model(x), y) / accum_iter
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        if (i + 1) % accum_iter == 0:
            scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        scaler.update()
        running += loss.item() * accum_iter
    if epoch % 4 == 0:
        print(f"epoch {epoch} loss {running / len(train_loader):.4f} gn {grad_norm:.3f} scale {scaler.get_scale()}")

model.eval()
with torch.no_grad():
    print(f"result: {criterion(model(xv), yv).item():.4f}")
