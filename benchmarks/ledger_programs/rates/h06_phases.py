import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
torch.set_num_threads(1)
means = torch.randn(5, 30) * 0.45


def data(n, flip):
    y = torch.randint(0, 5, (n,))
    x = means[y] + torch.randn(n, 30)
    return x, torch.where(torch.rand(n) < flip, torch.randint(0, 5, (n,)), y)


backbone = nn.Sequential(nn.Linear(30, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
head = nn.Linear(48, 5)
x, y = data(900, 0.25)
xv, yv = data(800, 0.0)


def loop(optimizer, scheduler, epochs):
    for epoch in range(epochs):
        for i in torch.randperm(len(x)).split(30):
            loss = F.cross_entropy(head(backbone(x[i])), y[i])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    print(f"phase over, loss {loss.item():.3f}, lrs {[f'{v:.5f}' for v in scheduler.get_last_lr()]}")


per_epoch = len(x) // 30
opt = torch.optim.SGD([{"params": backbone.parameters(), "lr": 0.0}, {"params": head.parameters(), "lr": 0.1}], momentum=0.9)
loop(opt, torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=3 * per_epoch), 3)
opt = torch.optim.SGD([{"params": backbone.parameters(), "lr": 0.02}, {"params": head.parameters(), "lr": 0.01}], momentum=0.9, weight_decay=1e-4)
loop(opt, torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=[0.05, 0.02], total_steps=9 * per_epoch), 9)
with torch.no_grad():
    print(f"result: {F.cross_entropy(head(backbone(xv)), yv).item():.4f}")
