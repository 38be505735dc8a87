import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(19)

EPOCHS, GROW_AT, LR = 30, 8, 0.03


class Growing(nn.Module):
    def __init__(self, d_in, n_out):
        super().__init__()
        self.inp = nn.Linear(d_in, 48)
        self.layers = nn.ModuleList()
        self.out = nn.Linear(48, n_out)

    def grow(self):
        layer = nn.Linear(48, 48)
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
        self.layers.append(layer)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for layer in self.layers:
            h = h + F.relu(layer(h))
        return self.out(h)


def dataset(n, w):
    x = torch.randn(n, 10)
    logits = 2.0 * torch.tanh(x @ w[0]) @ w[1]
    return x, torch.distributions.Categorical(logits=logits).sample()


def make_optimizer(model):
    return torch.optim.Adam(model.parameters(), lr=LR)


w = (torch.randn(10, 16), torch.randn(16, 4))
x, y = dataset(1500, w)
vx, vy = dataset(3000, w)
model = Growing(10, 4)
optimizer = make_optimizer(model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)

for epoch in range(EPOCHS):
    if epoch == GROW_AT:
        model.grow()
        optimizer = make_optimizer(model)
    for idx in torch.randperm(len(x)).split(50):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    if epoch % 10 == 0:
        print(epoch, f"lr {scheduler.get_last_lr()[0]:.4f}", f"loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(vx), vy).item())
