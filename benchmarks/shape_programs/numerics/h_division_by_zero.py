"""Node labels on a random graph; some nodes have no neighbours at all."""
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
torch.set_num_threads(1)
N = 400
label = torch.randint(0, 4, (N,))
link = torch.rand(N, N) < torch.where(label[:, None] == label[None], 0.02, 0.002)
link = (link | link.T).fill_diagonal_(False)
link[::17] = False
link[:, ::17] = False
feature = F.one_hot(label, 4).float() + 0.8 * torch.randn(N, 4)
feature = torch.cat([feature, torch.randn(N, 12)], 1)


def propagation(link):
    scale = link.sum(1).float().pow(-0.5)
    scale = scale.masked_fill(torch.isinf(scale), 0.0)
    return scale[:, None] * link.float() * scale[None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_in, self.near_in = nn.Linear(16, 32), nn.Linear(16, 32)
        self.self_out, self.near_out = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x, p):
        h = F.relu(self.self_in(x) + p @ self.near_in(x))
        return self.self_out(h) + p @ self.near_out(h)


known = torch.rand(N) < 0.6
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=5e-4)
for step in range(80):
    keep = torch.rand(N, N).triu(1)
    p = propagation(link & ((keep + keep.T) > 0.2))
    loss = F.cross_entropy(net(feature, p)[known], label[known])
    opt.zero_grad()
    loss.backward()
    opt.step()
with torch.no_grad():
    print("RESULT", F.cross_entropy(net(feature, propagation(link))[~known], label[~known]).item())
