# Graph node regression with two backward passes through one trunk; each loss goes in once.
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
N = 80
adj = (torch.rand(N, N) < 0.06).float()
adj = ((adj + adj.T + torch.eye(N)) > 0).float()
adj = adj / adj.sum(1, keepdim=True)
feats = torch.randn(N, 6)
level = torch.tanh(adj @ feats[:, :1]) + feats[:, 1:2]
group = ((adj @ feats)[:, 2] > 0).long()
trunk, level_head, group_head = nn.Linear(12, 32), nn.Linear(32, 1), nn.Linear(32, 2)
params = [p for m in (trunk, level_head, group_head) for p in m.parameters()]
opt = torch.optim.Adam(params, lr=1e-2)
total = None
for step in range(120):
    h = torch.relu(trunk(torch.cat([feats, adj @ feats], 1)))
    opt.zero_grad()
    first = nn.functional.mse_loss(level_head(h), level)
    first.backward(retain_graph=True)
    second = nn.functional.cross_entropy(group_head(h), group)
    second.backward()
    total = (first + second).detach() if total is None else 0.9 * total + 0.1 * (first + second).detach()
    opt.step()
print("RESULT", total.item())
