"""Fits a regression with dropout and averages many random predictions in its evaluation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)

DRAWS = 40


def wells(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=gen) * 4 - 2
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] ** 2 - x[:, 2] * x[:, 3]
    return x, (y + 0.2 * torch.randn(n, generator=gen) - 0.67) / 1.6


class Net(nn.Module):
    def __init__(self, width=128, p=0.05):
        super().__init__()
        self.first = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        self.drop_first, self.drop_second = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        h = self.drop_first(F.relu(self.norm(self.first(x))))
        h = self.drop_second(F.relu(self.second(h)))
        return self.out(h).squeeze(1)


def dropout_only(model):
    """Everything is in evaluation mode, apart from the dropout, which goes on drawing."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()


@torch.no_grad()
def predict(model, x):
    dropout_only(model)
    draws = torch.stack([model(x) for _ in range(DRAWS)])
    model.train()
    return draws.mean(dim=0), draws.std(dim=0)


train_x, train_y = wells(4000, 1)
val_x, val_y = wells(1000, 2)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=10 * 40)
for epoch in range(10):
    for chunk in torch.randperm(len(train_x)).split(100):
        loss = F.mse_loss(model(train_x[chunk]), train_y[chunk])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    mean, spread = predict(model, val_x)
    print(f"epoch {epoch} loss {loss.item():.4f} val {F.mse_loss(mean, val_y).item():.4f} "
          f"spread {spread.mean().item():.4f}")
print("RESULT", round(F.mse_loss(mean, val_y).item(), 4))
