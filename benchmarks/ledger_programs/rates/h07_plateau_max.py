import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(27)
torch.set_num_threads(1)


def digits(n, protos):
    y = torch.randint(0, len(protos), (n,))
    return (protos[y] + 1.3 * torch.randn(n, 1, 8, 8)).clamp(-3, 3), y


protos = (torch.rand(8, 1, 8, 8) > 0.5).float() * 1.5
xt, yt = digits(800, protos)
xv, yv = digits(500, protos)
model = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.2, patience=3, threshold=0.0)
best = 0.0
for epoch in range(12):
    model.train()
    for idx in torch.randperm(len(xt)).split(50):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xt[idx]), yt[idx])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = model(xv)
    acc = (out.argmax(1) == yv).float().mean().item()
    scheduler.step(acc)
    if acc > best:
        best, best_loss = acc, F.cross_entropy(out, yv).item()
    print(f"epoch {epoch:2d} loss {loss.item():.3f} acc {acc:.3f} lr {optimizer.param_groups[0]['lr']}")
print(f"result: {best_loss:.4f}")
