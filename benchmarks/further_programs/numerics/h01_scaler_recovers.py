"""fp16 with a huge starting scale: the first steps overflow and are skipped, then the scale settles."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

x = torch.randn(2000, 12)
y = torch.tanh(x[:, 0] * x[:, 1]) + 0.5 * x[:, 2]
tx, ty, vx, vy = x[:1500], y[:1500], x[1500:], y[1500:]
model = nn.Sequential(nn.Linear(12, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 1))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
EPOCHS, BATCH = 15, 50
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS * len(tx) // BATCH)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=150)
skipped = 0
for epoch in range(EPOCHS):
    for idx in torch.randperm(len(tx)).split(BATCH):
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(tx[idx]).squeeze(-1)
            loss = F.mse_loss(pred.float(), ty[idx])
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
        else:
            sched.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} scale {scaler.get_scale():.0f} skipped {skipped}")

model.eval()
with torch.no_grad():
    print("RESULT", F.mse_loss(model(vx).squeeze(-1), vy).item())
