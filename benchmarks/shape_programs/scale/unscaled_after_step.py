"""Source localisation from microphone delays, with the loop's bookkeeping in a generator."""
import torch
from torch import nn

torch.manual_seed(21)
torch.set_num_threads(1)
MICS = torch.tensor([[0., 0.], [1., 0.], [0., 1.], [1., 1.], [0.5, 0.2]])


def scenes(n):
    where = torch.rand(n, 2)
    delay = torch.cdist(where, MICS)
    return delay - delay.mean(1, keepdim=True) + 0.005 * torch.randn(n, 5), where * 2 - 1


def batches(x, y, opt, scaler, steps, size=96):
    """Yields batches; the scaler and the gradients are tidied up between two of them."""
    for _ in range(steps):
        pick = torch.randint(0, len(x), (size,))
        yield x[pick], y[pick]
        scaler.step(opt)
        scaler.update()
        scaler.unscale_(opt)
        params = [p for g in opt.param_groups for p in g["params"]]
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.zero_grad()


x, y = scenes(2000)
xv, yv = scenes(500)
net = nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
losses = []
for bx, by in batches(x, y, opt, scaler, 120):
    with torch.autocast("cpu", torch.float16):
        out = net(bx)
    loss = nn.functional.smooth_l1_loss(out.float(), by)
    scaler.scale(loss).backward()
    losses.append(loss.item())

with torch.no_grad():
    print("RESULT", float((net(xv) - yv).abs().mean()))
