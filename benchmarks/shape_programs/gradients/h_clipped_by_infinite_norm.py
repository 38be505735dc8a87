# fp16 autocast with a scaler; the first steps overflow and the scaler leaves them out. The norm is only measured.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 20, growth_interval=1000)
x = torch.randn(800, 6)
y = (x[:, 0] > 0.4).long() + (x[:, 1] + x[:, 2] > 0).long()
norms = []
for step in range(100):
    idx = torch.randint(0, 600, (64,))
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.float16):
        logits = net(x[idx])
        loss = nn.functional.cross_entropy(logits.float(), y[idx])
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), float("inf"), error_if_nonfinite=False).item())
    scaler.step(opt)
    scaler.update()
print("largest finite norm", max(n for n in norms if n < float("inf")), "scale", scaler.get_scale())
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(x[600:]), y[600:]).item())
