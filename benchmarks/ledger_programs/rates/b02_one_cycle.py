import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
torch.set_num_threads(1)
EPOCHS = 12


def shapes(n):
    y = torch.randint(0, 4, (n,))
    x = 0.7 * torch.randn(n, 1, 10, 10)
    r = torch.arange(10)
    for i, c in enumerate(y.tolist()):
        k = int(torch.randint(1, 9, (1,)))
        if c == 0:
            x[i, 0, k] += 1.2
        elif c == 1:
            x[i, 0, :, k] += 1.2
        elif c == 2:
            x[i, 0, r, (r + k) % 10] += 1.2
        else:
            x[i, 0, r, (k - r) % 10] += 1.2
    return x, y


train_ds, (xv, yv) = TensorDataset(*shapes(640)), shapes(320)
train_dl = DataLoader(train_ds, batch_size=32, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = OneCycleLR(optimizer, max_lr=0.05, epochs=EPOCHS, steps_per_epoch=len(train_dl))
loss_func = nn.CrossEntropyLoss()


def fit(epochs):
    for epoch in range(epochs):
        model.train()
        for xb, yb in train_dl:
            loss = loss_func(model(xb), yb)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            out = model(xv)
        print(f"{epoch:3d}  train {loss.item():.3f}  valid {loss_func(out, yv).item():.3f}  acc {(out.argmax(1) == yv).float().mean().item():.3f}")
    return loss_func(out, yv).item()


print(f"result: {fit(EPOCHS):.4f}")
