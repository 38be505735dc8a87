"""One model for four sites: gradients of each site are unscaled on their own and kept in a side sum."""
import torch
from torch import nn

torch.manual_seed(22)
torch.set_num_threads(1)
SITES = 4


def site(k, n):
    x = torch.randn(n, 6)
    y = torch.sin(x[:, :1] + k) + (k - 1.5) * x[:, 1:2] * 0.5
    tag = nn.functional.one_hot(torch.full((n,), k), SITES).float()
    return torch.cat([x, tag], 1), y


def site_gradient(net, scaler, x, y):
    """The gradient of one site, unscaled and limited in norm."""
    pick = torch.randint(0, len(x), (48,))
    with torch.autocast("cpu", torch.float16):
        out = net(x[pick])
    loss = scaler.scale((out.float() - y[pick]).pow(2).mean())
    grads = [g / scaler.get_scale() for g in torch.autograd.grad(loss, list(net.parameters()))]
    norm = torch.stack([g.norm() for g in grads]).norm()
    return [g * (3.0 / (norm + 1e-6)).clamp(max=1.0) for g in grads]


train = [site(k, 512) for k in range(SITES)]
test = [site(k, 256) for k in range(SITES)]
net = nn.Sequential(nn.Linear(6 + SITES, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=8e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
for step in range(100):
    per_site = [site_gradient(net, scaler, x, y) for x, y in train]
    for p, *gs in zip(net.parameters(), *per_site):
        p.grad = torch.stack(gs).mean(0) * scaler.get_scale()
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    errors = [float((net(x) - y).pow(2).mean()) for x, y in test]
print("RESULT", sum(errors) / SITES)
