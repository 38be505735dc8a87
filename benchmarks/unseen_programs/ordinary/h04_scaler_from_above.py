"""fp16 with a scaler that starts far too high on purpose: it finds its level in the first few steps."""
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(4)


def plates(n):
    x = torch.rand(n, 1, 10, 10)
    ridge = x[:, 0, 3:7, 3:7].mean((1, 2)) - x[:, 0, :3].mean((1, 2))
    return x, 4 * ridge.unsqueeze(1)


net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=1), nn.GELU(), nn.Flatten(), nn.Linear(512, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=50)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
x, y = plates(1200)

for step in range(240):
    idx = torch.randint(0, len(x), (32,))
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.float16):
        out = net(x[idx])
    loss = nn.functional.mse_loss(out.float(), y[idx])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        schedule.step()
    if step % 40 == 0:
        print(step, round(loss.item(), 5), scaler.get_scale())

x, y = plates(300)
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x), y).item())
