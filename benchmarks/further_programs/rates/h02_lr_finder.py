"""A learning-rate range test whose weights are thrown away, then OneCycle with the rate that was found."""
import copy
import math
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(8)

x = torch.randn(1500, 12)
w = torch.randn(12, 4)
y = (x @ w + 1.5 * torch.tanh(x @ w).flip(1)).argmax(1)
train_ds, val = TensorDataset(x[:1200], y[:1200]), (x[1200:], y[1200:])
loader = DataLoader(train_ds, batch_size=40, shuffle=True)
criterion = nn.CrossEntropyLoss()
model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))


def range_test(model, lo=1e-4, hi=10.0, n=60):
    saved = copy.deepcopy(model.state_dict())
    opt = torch.optim.SGD(model.parameters(), lr=lo, momentum=0.9)
    smooth, best, best_lr, lr = None, math.inf, lo, lo
    step = 0
    while step < n:
        for xb, yb in loader:
            lr = lo * (hi / lo) ** (step / n)
            for g in opt.param_groups:
                g["lr"] = lr
            opt.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            opt.step()
            smooth = loss.item() if smooth is None else 0.8 * smooth + 0.2 * loss.item()
            if smooth < best:
                best, best_lr = smooth, lr
            step += 1
            if step >= n or smooth > 4 * best:
                model.load_state_dict(saved)
                return best_lr / 5
    model.load_state_dict(saved)
    return best_lr / 5


max_lr = range_test(model)
print("chosen rate", max_lr)
EPOCHS = 12
opt = torch.optim.SGD(model.parameters(), lr=max_lr, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=max_lr, epochs=EPOCHS, steps_per_epoch=len(loader))
for epoch in range(EPOCHS):
    model.train()
    for xb, yb in loader:
        opt.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        opt.step()
        sched.step()
    print(epoch, loss.item())

model.eval()
with torch.no_grad():
    print("RESULT", criterion(model(val[0]), val[1]).item())
