import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)
MICRO, ACC = 8, 8
w = torch.randn(16, 5)


def draw(n):
    x = torch.randn(n, 16)
    return x, (x @ w + 0.5 * torch.randn(n, 5)).argmax(1)


x, y = draw(4000)
xv, yv = draw(1000)
model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 5))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=50)
updates = 0
for epoch in range(5):
    chunks = torch.randperm(4000).split(MICRO)
    for k, idx in enumerate(chunks):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x[idx])
        loss = F.nll_loss(F.log_softmax(out.float(), 1), y[idx]) / ACC
        scaler.scale(loss).backward()
        if (k + 1) % ACC == 0 or k + 1 == len(chunks):
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            updates += 1
    print(epoch, updates, scaler.get_scale(), round(loss.item() * ACC, 4))
model.eval()
with torch.no_grad():
    print("RESULT", (model(xv).argmax(1) != yv).float().mean().item())
