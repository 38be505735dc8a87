import torch
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)


def batches(n_steps, bs=32):
    g = torch.Generator().manual_seed(9)
    for _ in range(n_steps):
        c = torch.randint(0, 4, (bs,), generator=g)
        x = torch.randn(bs, 16, generator=g) * 0.7
        x[torch.arange(bs), c * 4] += 2.0
        yield x, c


model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
criterion = nn.CrossEntropyLoss()

for i, (x, y) in enumerate(batches(300)):
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = criterion(logits.float(), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if i % 50 == 0:
        print(i, f"{loss.item():.4f}")

with torch.no_grad():
    err, n = 0, 0
    for x, y in batches(20, 64):
        err += (model(x).argmax(1) != y).sum().item()
        n += len(y)
print("RESULT", err / n)
