# WGAN on a 1-d mixture: the critic's weights are limited after each of its steps.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
c = 0.15


def limit_weights(optimizer, args, kwargs):
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.clamp_(-c, c)


def real(n):
    return 3.0 + 0.4 * torch.randn(n, 1)


critic = nn.Sequential(nn.Linear(1, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
opt_g = torch.optim.RMSprop(gen.parameters(), lr=1e-2)
opt_c.register_step_post_hook(limit_weights)
for step in range(100):
    for _ in range(3):
        x, fake = real(64), gen(torch.randn(64, 4)).detach()
        opt_c.zero_grad()
        (critic(fake).mean() - critic(x).mean()).backward()
        opt_c.step()
    opt_g.zero_grad()
    (-critic(gen(torch.randn(64, 4))).mean()).backward()
    opt_g.step()
with torch.no_grad():
    a, b = real(2000).sort(0).values, gen(torch.randn(2000, 4)).sort(0).values
    print("RESULT", (a - b).abs().mean().item())
