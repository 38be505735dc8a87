"""Gradual unfreezing with discriminative learning rates (ULMFiT style)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_num_threads(1)
A = torch.randn(8, 8)
b = torch.randn(8)


def sample(n, shift):
    x = torch.randn(n, 8)
    return x, torch.sin(x @ A * 0.4 + shift) @ b


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
        self.head = nn.Linear(48, 1)

    def forward(self, x):
        for l in self.layers:
            x = F.gelu(l(x))
        return self.head(x).squeeze(-1)


def step(model, opt, shift):
    x, y = sample(64, shift)
    loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


model = Net()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(200):
    step(model, opt, 0.0)

model.head.reset_parameters()
for layer in model.layers:
    layer.requires_grad_(False)
opt = torch.optim.Adam(model.head.parameters(), lr=4e-3)
todo = list(model.layers)
for epoch in range(5):
    if epoch and todo:
        layer = todo.pop()
        layer.requires_grad_(True)
        opt.add_param_group({"params": layer.parameters(), "lr": 4e-3 / 1.3 ** epoch})
        print("unfroze; groups:", len(opt.param_groups))
    for _ in range(80):
        l = step(model, opt, 1.0)
    print(epoch, l)

with torch.no_grad():
    x, y = sample(2000, 1.0)
    print("result:", F.mse_loss(model(x), y).item())
