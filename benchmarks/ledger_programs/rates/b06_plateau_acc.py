import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(27)
torch.set_num_threads(1)


def digits(n, protos):
    y = torch.randint(0, len(protos), (n,))
    return (protos[y] + 1.3 * torch.randn(n, 1, 8, 8)).clamp(-3, 3), y


protos = (torch.rand(8, 1, 8, 8) > 0.5).float() * 1.5
xt, yt = digits(800, protos)
xv, yv = digits(500, protos)


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 10, 3, padding=1)
        self.c2 = nn.Conv2d(10, 16, 3)
        self.f1 = nn.Linear(16 * 9, 32)
        self.f2 = nn.Linear(32, 8)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.f2(F.relu(self.f1(x.flatten(1))))


def train(model, optimizer):
    model.train()
    total = 0.0
    for idx in torch.randperm(len(xt)).split(50):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xt[idx]), yt[idx])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def test(model):
    model.eval()
    with torch.no_grad():
        out = model(xv)
    return F.cross_entropy(out, yv).item(), (out.argmax(1) == yv).float().mean().item()


model = SmallCNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)
for epoch in range(14):
    tr = train(model, optimizer)
    val_loss, val_acc = test(model)
    scheduler.step(val_acc)
    print(f"epoch {epoch:2d} train {tr:.3f} val_loss {val_loss:.3f} val_acc {val_acc:.3f}")
print(f"result: {val_loss:.4f}")
