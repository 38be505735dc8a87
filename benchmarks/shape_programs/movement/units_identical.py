"""Soft mixture of small experts for a piecewise tabular function."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(14)

x = torch.randn(1200, 6)
region = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
slopes = torch.randn(4, 6) * 1.5
y = (x * slopes[region]).sum(1) + 0.1 * torch.randn(1200)


class SoftExperts(nn.Module):
    def __init__(self, n_in, hidden, experts):
        super().__init__()
        self.route = nn.Linear(n_in, experts)
        nn.init.zeros_(self.route.weight)
        nn.init.zeros_(self.route.bias)
        bound = n_in ** -0.5
        inner = torch.empty(n_in, hidden).uniform_(-bound, bound)
        outer = torch.empty(hidden, 1).uniform_(-bound, bound)
        self.inner = nn.Parameter(inner.repeat(experts, 1, 1))
        self.outer = nn.Parameter(outer.repeat(experts, 1, 1))

    def forward(self, v):
        gates = self.route(v).softmax(1)
        h = torch.tanh(torch.einsum("bi,eih->ebh", v, self.inner))
        each = torch.bmm(h, self.outer).squeeze(2)
        return (gates.T * each).sum(0)


net = SoftExperts(6, hidden=4, experts=6)
opt = torch.optim.Adam(net.parameters(), lr=0.03)
for step in range(150):
    rows = torch.randint(0, 1000, (128,))
    loss = nn.functional.mse_loss(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(step, round(loss.item(), 4))
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(net(x[1000:]), y[1000:]).item())
