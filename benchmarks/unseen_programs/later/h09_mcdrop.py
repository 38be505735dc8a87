import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)


def moons(n):
    k = torch.randint(0, 2, (n,))
    a = torch.rand(n) * 3.1416
    p = torch.stack([a.cos(), a.sin()], 1)
    p = torch.where(k[:, None] == 1, torch.tensor([1.0, 0.4]) - p, p)
    return p + 0.12 * torch.randn(n, 2), k


class Bayes(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x):
        x = F.dropout(F.relu(self.l1(x)), 0.1, training=True)
        x = F.dropout(F.relu(self.l2(x)), 0.1, training=True)
        return self.l3(x)


def predictive(net, x, draws=40):
    net.eval()
    with torch.no_grad():
        return torch.stack([net(x).softmax(1) for _ in range(draws)]).mean(0)


x, k = moons(1500)
xv, kv = moons(600)
net = Bayes()
opt = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-5)
for epoch in range(20):
    net.train()
    for idx in torch.randperm(1500).split(50):
        loss = F.cross_entropy(net(x[idx]), k[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 4:
        print(epoch, F.nll_loss(predictive(net, xv).log(), kv).item())
print("RESULT", F.nll_loss(predictive(net, xv).log(), kv).item())
