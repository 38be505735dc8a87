"""Graph regression: predict a molecule-like score with two rounds of message passing."""
import torch
from torch import nn

torch.manual_seed(7)
torch.set_num_threads(1)


class Messages(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.own, self.others = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out, bias=False)

    def forward(self, h, adj):
        return torch.relu(self.own(h) + adj @ self.others(h))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = Messages(5, 32), Messages(32, 32), nn.Linear(32, 1)

    def forward(self, h, adj):
        return self.out(self.two(self.one(h, adj), adj).mean(1))


def graphs(n, nodes=9):
    h = torch.randn(n, nodes, 5)
    adj = (torch.rand(n, nodes, nodes) < 0.3).float()
    adj = ((adj + adj.transpose(1, 2)) > 0).float()
    adj = adj / adj.sum(-1, keepdim=True).clamp_min(1)
    y = torch.relu(adj @ h[..., :2]).sum((1, 2)) + (h[..., 2:3] * (adj @ h[..., 3:4])).sum((1, 2))
    return h, adj, (y[:, None] - 5)


def amp_options():
    return {"init_scale": 1.0, "growth_interval": 1}


h, adj, y = graphs(640)
hv, av, yv = graphs(256)
model = GraphNet()
opt = torch.optim.SGD(model.parameters(), lr=8e-3, momentum=0.9)
order = [b for _ in range(10) for b in torch.randperm(640).split(64)]
scaler = torch.amp.GradScaler("cpu", **amp_options())
for step, pick in enumerate(order):
    if step == 8:
        scaler.set_growth_interval(1000)
    opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        out = model(h[pick], adj[pick])
    loss = (out.float() - y[pick]).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()

with torch.no_grad():
    print("RESULT", float((model(hv, av) - yv).pow(2).mean()))
