import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(47)
K = 6
protos = torch.randn(K, 32)


def images(n):
    y = torch.randint(0, K, (n,))
    return protos[y] + 1.2 * torch.randn(n, 32), y


def blend(x, y, alpha=0.3):
    lam = torch.distributions.Beta(1.0 + alpha, alpha).sample().item()
    perm = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[perm], y, y[perm], lam


def blended_loss(logits, ya, yb, lam):
    return (1 - lam) * F.cross_entropy(logits, ya) + lam * F.cross_entropy(logits, yb)


x, y = images(2500)
xv, yv = images(1000)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, K))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
for epoch in range(12):
    net.train()
    for idx in torch.randperm(len(x)).split(64):
        xm, ya, yb, lam = blend(x[idx], y[idx])
        loss = blended_loss(net(xm), ya, yb, lam)
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        err = (net(xv).argmax(1) != yv).float().mean().item()
    print(epoch, round(loss.item(), 4), round(err, 4))
print("RESULT", err)
