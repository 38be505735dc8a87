import torch
from torch import nn
from torch.utils.data import DataLoader, random_split, TensorDataset

torch.manual_seed(33)
torch.set_num_threads(1)

config = {"lr": 0.02, "decay": 0.93, "epochs": 20, "batch_size": 40}

x = torch.rand(1000, 6) * 4 - 2
y = torch.stack([x[:, 0] * x[:, 1], torch.sin(2 * x[:, 2]) + x[:, 3]], 1) + 0.05 * torch.randn(1000, 2)
train_set, val_set = random_split(TensorDataset(x, y), [800, 200])
train_loader = DataLoader(train_set, config["batch_size"], shuffle=True)
val_loader = DataLoader(val_set, 200)

net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lr_lambda=lambda epoch: config["lr"] * config["decay"] ** epoch)
criterion = nn.MSELoss()


def evaluate():
    net.eval()
    with torch.no_grad():
        return sum(criterion(net(a), b).item() for a, b in val_loader) / len(val_loader)


history = []
for epoch in range(config["epochs"]):
    net.train()
    for a, b in train_loader:
        optimizer.zero_grad()
        loss = criterion(net(a), b)
        loss.backward()
        optimizer.step()
    scheduler.step()
    history.append(evaluate())
    if epoch % 5 == 0:
        print(f"Epoch {epoch + 1}/{config['epochs']}: val {history[-1]:.4f}")

print(f"result: {history[-1]:.4f}")
