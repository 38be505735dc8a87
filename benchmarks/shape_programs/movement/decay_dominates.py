"""Node classification on a stochastic block graph with a post-step regulariser."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(4)

N, K = 240, 4
block = torch.arange(N) % K
prob = torch.where(block[:, None] == block[None], 0.15, 0.04)
adj = (torch.rand(N, N) < prob).float().triu(1)
adj = adj + adj.T + torch.eye(N)
norm = adj.sum(1).rsqrt()
a_hat = norm[:, None] * adj * norm[None]
feats = torch.randn(K, 20)[block] * 0.5 + torch.randn(N, 20)
known = torch.rand(N) < 0.5


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, h):
        return a_hat @ h @ self.weight + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = GraphConv(20, 32), GraphConv(32, K)

    def forward(self, h):
        return self.two(torch.relu(self.one(h)))


def shrink_after(optimizer, strength):
    matrices = [p for g in optimizer.param_groups for p in g["params"] if p.ndim > 1]

    def hook(opt, args, kwargs):
        with torch.no_grad():
            torch._foreach_mul_(matrices, 1.0 - strength)

    return optimizer.register_step_post_hook(hook)


net = GCN()
opt = torch.optim.Adam(net.parameters(), lr=0.01)
shrink_after(opt, strength=0.2)
for epoch in range(120):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(net(feats)[known], block[known])
    loss.backward()
    opt.step()
    if epoch % 30 == 0:
        print(epoch, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(net(feats)[~known], block[~known]).item())
