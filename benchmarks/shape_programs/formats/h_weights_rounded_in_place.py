"""A half-precision twin is refreshed for sampling between the steps; the trained network stays as it is."""
import copy
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
generator = nn.Sequential(nn.Linear(3, 48), nn.SiLU(), nn.Linear(48, 2))
twin = copy.deepcopy(generator).half().requires_grad_(False)
optimizer = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.9)


def ring(n):
    a = 6.28 * torch.rand(n, 1)
    return torch.cat([a.cos(), a.sin()], 1)


for step in range(150):
    x0, t = ring(128), torch.rand(128, 1)
    noise = torch.randn(128, 2)
    xt = (1 - t) * x0 + t * noise
    loss = (generator(torch.cat([xt, t], 1)) - (noise - x0)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 24:
        twin.load_state_dict(generator.state_dict())
        x = torch.randn(32, 2).half()
        for k in range(8, 0, -1):
            x = x - twin(torch.cat([x, torch.full((32, 1), k / 8).half()], 1)) / 8
        print(step, x.float().norm(dim=1).mean().item())
print("RESULT", loss.item())
