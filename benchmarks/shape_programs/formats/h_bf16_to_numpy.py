"""A bank of bf16 embeddings is kept in NumPy as raw 16-bit words."""
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
centres = torch.randn(6, 16)
bank = []


def sample(n):
    y = torch.randint(0, 6, (n,))
    return centres[y] + 0.7 * torch.randn(n, 16), y


encoder, head = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 8)), nn.Linear(8, 6)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=5e-3)
for step in range(100):
    x, y = sample(64)
    with torch.autocast("cpu", torch.bfloat16):
        z = encoder(x)
        loss = nn.functional.cross_entropy(head(z), y)
    bank.append(z.detach().view(torch.int16).numpy().copy())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
stored = torch.from_numpy(np.concatenate(bank)).view(torch.bfloat16)
print("bank", tuple(stored.shape), stored.float().std().item())
x, y = sample(1000)
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(head(encoder(x)), y).item())
