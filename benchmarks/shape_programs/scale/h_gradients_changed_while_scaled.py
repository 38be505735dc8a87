"""Behaviour cloning of a controller; weight gradients are centred (Yong et al. 2020)."""
import torch
from torch import nn

torch.manual_seed(16)
torch.set_num_threads(1)


class Guarded(nn.Module):
    """Base class: after a parameter received its gradient, it is centred."""

    def guard(self):
        for p in self.parameters():
            p.register_post_accumulate_grad_hook(self._centre)
        return self

    def _centre(self, p):
        if p.dim() == 2:
            p.grad.sub_(p.grad.mean(1, keepdim=True))


class Policy(Guarded):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, s):
        return self.net(s)


def demonstrations(n):
    s = torch.randn(n, 6)
    a = torch.stack([torch.tanh(s[:, 0] - 2 * s[:, 3]), torch.sin(s[:, 1] + s[:, 4])], 1)
    return s, a + 0.02 * torch.randn(n, 2)


s, a = demonstrations(2048)
sv, av = demonstrations(512)
policy = Policy().guard()
opt = torch.optim.SGD(policy.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
for step in range(120):
    pick = torch.randint(0, len(s), (128,))
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = policy(s[pick])
    loss = (out.float() - a[pick]).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("RESULT", float((policy(sv) - av).pow(2).mean()))
