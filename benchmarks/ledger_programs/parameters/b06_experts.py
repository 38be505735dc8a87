"""Mixture of experts regression, one expert per sample."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(2)
torch.set_num_threads(1)
E, D = 4, 6


class Expert(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Linear(d, 1)

    def forward(self, x):
        return self.net(x).squeeze(-1)


class SparseMoE(nn.Module):
    def __init__(self, d, n_experts):
        super().__init__()
        self.router = nn.Linear(d, n_experts)
        self.experts = nn.ModuleList(Expert(d) for _ in range(n_experts))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        out = x.new_zeros(x.size(0))
        for e, expert in enumerate(self.experts):
            hit = (choice == e).nonzero().squeeze(-1)
            if hit.numel() == 0:
                continue
            out = out.index_add(0, hit, expert(x[hit]))
        load = F.one_hot(choice, len(self.experts)).float().mean(0)
        return out, load


mix = torch.randn(E, D) * 1.5


def batch(n):
    k = torch.randint(0, E, (n,))
    x = torch.randn(n, D)
    y = (x * mix[k]).sum(-1)
    code = 2 * F.one_hot(k, E).float()
    return torch.cat([x, code], 1), y


model = SparseMoE(D + E, E)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(500):
    x, y = batch(128)
    pred, load = model(x)
    loss = F.mse_loss(pred, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(step, f"{loss.item():.3f}", [round(v, 2) for v in load.tolist()])

with torch.no_grad():
    x, y = batch(2000)
    print("result:", F.mse_loss(model(x)[0], y).item())
