import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
torch.set_num_threads(1)


def friedman(n):
    x = torch.rand(n, 10)
    y = 10 * torch.sin(3.1416 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, ((y - 14.4) / 4.9 + 0.02 * torch.randn(n)).unsqueeze(1)


train_set = TensorDataset(*friedman(1024))
val_x, val_y = friedman(512)
loader = DataLoader(train_set, batch_size=64, shuffle=True)

net = nn.Sequential(
    nn.Linear(10, 64), nn.ReLU(),
    nn.Linear(64, 64), nn.ReLU(),
    nn.Linear(64, 1),
)
criterion = nn.MSELoss()
optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scheduler = ReduceLROnPlateau(optimizer, factor=0.2, patience=3, min_lr=1e-6)

running_loss = 0.0
for epoch in range(40):
    net.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    scheduler.step(running_loss)
    if epoch % 8 == 0:
        net.eval()
        with torch.no_grad():
            val_loss = criterion(net(val_x), val_y)
        print("[%d] last loss %.4f val %.4f" % (epoch + 1, loss.item(), val_loss.item()))

net.eval()
with torch.no_grad():
    print("RESULT", criterion(net(val_x), val_y).item())
