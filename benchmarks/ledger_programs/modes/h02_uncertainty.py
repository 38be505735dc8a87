"""Monte-Carlo dropout: predictive mean and spread."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


def f(x):
    return torch.sin(3 * x) + 0.3 * x


net = nn.Sequential(nn.Linear(1, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1),
                    nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 1))


def enable_dropout(model):
    model.eval()
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.train()


@torch.no_grad()
def mc_predict(model, x, samples=20):
    enable_dropout(model)
    out = torch.stack([model(x) for _ in range(samples)])
    model.train()
    return out.mean(0), out.std(0)


tx = torch.rand(400, 1) * 4 - 2
ty = f(tx) + 0.1 * torch.randn_like(tx)
vx = torch.linspace(-2, 2, 300)[:, None]
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(50):
    for idx in torch.randperm(400).split(50):
        loss = F.mse_loss(net(tx[idx]), ty[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 10 == 0:
        mean, std = mc_predict(net, vx)
        print(epoch, F.mse_loss(mean, f(vx)).item(), std.mean().item())
mean, std = mc_predict(net, vx)
print("result:", F.mse_loss(mean, f(vx)).item())
