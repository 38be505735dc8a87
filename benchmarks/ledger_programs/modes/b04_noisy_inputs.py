import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)


class Regressor(nn.Module):
    """MLP on fixed random features, with input noise as augmentation."""

    def __init__(self, sigma=0.5):
        super().__init__()
        self.sigma = sigma
        self.lift = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64, affine=False)).requires_grad_(False).eval()
        self.encoder = nn.Sequential(nn.Linear(70, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 1))

    def train(self, mode=True):
        # the lift is fixed, it never leaves eval
        self.encoder.train(mode)
        self.head.train(mode)
        return self

    def forward(self, x):
        if self.training:
            x = x + self.sigma * torch.randn_like(x)
        h = torch.cat([x, torch.relu(self.lift(x))], 1)
        return self.head(self.encoder(h)).squeeze(-1)


def f(x):
    return torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]


def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        out = F.mse_loss(model(x), f(x)).item()
    model.train()
    return out


tx, vx = torch.randn(1000, 6), torch.randn(1000, 6)
model = Regressor()
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=4e-3)
for epoch in range(25):
    for idx in torch.randperm(1000).split(50):
        loss = F.mse_loss(model(tx[idx]), f(tx[idx]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 0:
        print(epoch, loss.item(), evaluate(model, vx))
print("result:", evaluate(model, vx))
