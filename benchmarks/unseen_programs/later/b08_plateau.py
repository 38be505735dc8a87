import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

torch.set_num_threads(1)
torch.manual_seed(2)


def spiral(n):
    k = torch.randint(0, 3, (n,))
    r = torch.rand(n) * 0.9 + 0.1
    a = r * 5 + k * 2.0944 + 0.1 * torch.randn(n)
    return torch.stack([r * a.cos(), r * a.sin()], 1), k


x, y = spiral(1500)
xv, yv = spiral(600)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sched = ReduceLROnPlateau(opt, mode="max", factor=0.3, patience=2, min_lr=1e-6)
ce = nn.CrossEntropyLoss()


def validate():
    model.eval()
    with torch.no_grad():
        out = model(xv)
        return ce(out, yv).item(), (out.argmax(1) != yv).float().mean().item()


for epoch in range(40):
    model.train()
    for idx in torch.randperm(len(x)).split(50):
        loss = ce(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    vloss, verr = validate()
    sched.step(vloss)
    if epoch % 5 == 0:
        print(f"{epoch} loss {vloss:.4f} err {verr:.3f}")
print("RESULT", validate()[0])
