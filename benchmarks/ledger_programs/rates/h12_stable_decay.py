import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(57)
torch.set_num_threads(1)
LAYERS, WIDTH = 4, 48


class Res(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, WIDTH)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = x + b(x)
        return self.head(x)


def layer_groups(model, decay=0.8):
    groups = [{"params": model.stem.parameters(), "lr_scale": decay ** (LAYERS + 1)}]
    for k, b in enumerate(model.blocks):
        groups.append({"params": b.parameters(), "lr_scale": decay ** (LAYERS - k)})
    groups.append({"params": model.head.parameters(), "lr_scale": 1.0})
    return groups


def target(x):
    return (x[:, :1] * x[:, 1:2]).tanh() + torch.sin(2 * x[:, 2:3]) - x[:, 3:4].abs()


def adjust(optimizer, step, total, peak=4e-3, warm=0.04, cool=0.15):
    frac = step / total
    if frac < warm:
        lr = peak * frac / warm
    elif frac < 1 - cool:
        lr = peak
    else:
        lr = peak * (1 - frac) / cool
    for g in optimizer.param_groups:
        g["lr"] = lr * g["lr_scale"]
    return lr


model = Res()
optimizer = torch.optim.AdamW(layer_groups(model), lr=4e-3, weight_decay=0.01)
TOTAL = 450
for step in range(TOTAL):
    lr = adjust(optimizer, step, TOTAL)
    x = torch.randn(64, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pred = model(x)
    loss = F.mse_loss(pred.float(), target(x) + 0.2 * torch.randn(64, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 90 == 0:
        print(f"step {step} lr {lr:.2e} loss {loss.item():.4f}")

model.eval()
x = torch.randn(1500, 12)
with torch.no_grad():
    print(f"result: {F.mse_loss(model(x), target(x)).item():.4f}")
