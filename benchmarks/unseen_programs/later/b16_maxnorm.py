import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(29)


class Net(nn.Module):
    def __init__(self, d, h, k):
        super().__init__()
        self.inp = nn.Linear(d, h)
        self.mid = nn.Linear(h, h)
        self.out = nn.Linear(h, k)

    def forward(self, x):
        return self.out(torch.relu(self.mid(torch.relu(self.inp(x)))))


def constrain(model, limit=1.5):
    for layer in (model.inp, model.mid, model.out):
        norm = layer.weight.detach().norm(dim=1, keepdim=True)
        scale = (limit / norm).clamp(max=1.0)
        layer.weight = nn.Parameter(layer.weight.detach() * scale)


teacher = Net(12, 10, 3).requires_grad_(False)
shift = teacher(torch.randn(5000, 12) * 2).mean(0)


def pull(n):
    x = torch.randn(n, 12) * 2
    out = teacher(x)
    return x, (out - shift).argmax(1)


x, y = pull(4000)
xv, yv = pull(1000)
model = Net(12, 24, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(10):
    for idx in torch.randperm(len(x)).split(64):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        opt.step()
        constrain(model)
    print(epoch, f"{loss.item():.4f}")
with torch.no_grad():
    print("RESULT", nn.functional.cross_entropy(model(xv), yv).item())
