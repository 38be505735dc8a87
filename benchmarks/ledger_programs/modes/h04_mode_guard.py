import contextlib
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


@contextlib.contextmanager
def evaluating(model):
    modes = {m: m.training for m in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            yield model
    finally:
        for m, flag in modes.items():
            m.training = flag


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64, affine=False), nn.ReLU())
        self.trunk = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(self.trunk(self.stem(x)))


w = torch.randn(16, 3)


def make(n):
    x = torch.randn(n, 16)
    return x, (x @ w + torch.randn(n, 3)).argmax(-1)


def val_loss(model, x, y):
    with evaluating(model) as m:
        return F.cross_entropy(m(x), y).item()


tx, ty = make(600)
vx, vy = make(1500)
model = Net()
with torch.no_grad():
    for _ in range(30):
        model.stem(torch.randn(64, 16))
model.stem.requires_grad_(False).eval()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
scaler = torch.amp.GradScaler("cpu", enabled=True)
step = 0
for epoch in range(20):
    for idx in torch.randperm(600).split(50):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(tx[idx]), ty[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        step += 1
        if step % 20 == 0:
            with evaluating(model):
                v = val_loss(model, vx, vy)
            if step % 100 == 0:
                print(step, loss.item(), v, model.training, model.stem.training)
print("result:", val_loss(model, vx, vy))
