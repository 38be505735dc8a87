import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(6)


def house_prices(n, coast):
    x = torch.randn(n, 8)
    price = x[:, 0] + 0.6 * x[:, 1] * x[:, 2]
    if coast:
        x = torch.cat([x, torch.ones(n, 1)], 1)
        price = 1.5 - price + x[:, 3]
    else:
        x = torch.cat([x, -torch.ones(n, 1)], 1)
    return x, price[:, None] + 0.1 * torch.randn(n, 1)


inland, coast = house_prices(640, False), house_prices(192, True)
inland_loader = DataLoader(TensorDataset(*inland), batch_size=32, shuffle=True)
coast_loader = DataLoader(TensorDataset(*coast), batch_size=32, shuffle=True)

net = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)


def loss_of(batch):
    x, y = batch
    return nn.functional.mse_loss(net(x), y)


def partner(source):
    batch = next(source, None)
    return 0.0 if batch is None else loss_of(batch)


side = iter(coast_loader)
for epoch in range(7):
    seen = 0.0
    for batch in inland_loader:
        main = loss_of(batch)
        loss = main + partner(side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += main.item()
    print(f"epoch {epoch} inland {seen / len(inland_loader):.3f}")

with torch.no_grad():
    errors = [loss_of(house_prices(500, flag)).item() for flag in (False, True)]
print("RESULT", sum(errors) / 2)
