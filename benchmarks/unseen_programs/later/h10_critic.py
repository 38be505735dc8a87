import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(10)


def real(n):
    return torch.randn(n, 2) * torch.tensor([0.3, 0.6]) + torch.tensor([2.0, -1.0])


gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
og = torch.optim.RMSprop(gen.parameters(), lr=1e-3)
oc = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
LIMIT = 0.1

for it in range(500):
    for p in critic.parameters():
        p.requires_grad_(True)
    for _ in range(4):
        with torch.no_grad():
            fake = gen(torch.randn(64, 4))
        gap = critic(fake).mean() - critic(real(64)).mean()
        oc.zero_grad()
        gap.backward()
        oc.step()
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-LIMIT, LIMIT)
    for p in critic.parameters():
        p.requires_grad_(False)
    loss = -critic(gen(torch.randn(64, 4))).mean()
    og.zero_grad()
    loss.backward()
    og.step()
    if it % 100 == 0:
        print(it, f"gap {gap.item():.4f} gen {loss.item():.4f}")
with torch.no_grad():
    s = gen(torch.randn(4000, 4))
    print("RESULT", (s.mean(0) - torch.tensor([2.0, -1.0])).abs().sum().item())
