import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

BATCH, EPOCHS, EVAL_EVERY = 20, 25, 25

w = torch.randn(16, 3)


def make(n):
    x = torch.randn(n, 16)
    return x, (x @ w + 1.0 * torch.randn(n, 3)).argmax(-1)


class Residual(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.bn = nn.BatchNorm1d(d)
        self.p = nn.Dropout(p)

    def forward(self, x):
        return x + self.p(torch.relu(self.bn(self.lin(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(16, 96)
        self.layers = nn.Sequential(Residual(96, 0.6), Residual(96, 0.6))
        self.out = nn.Linear(96, 3)

    def forward(self, x):
        return self.out(self.layers(torch.relu(self.inp(x))))


def evaluate(model, x, y):
    model.eval()
    with torch.inference_mode():
        loss = F.cross_entropy(model(x), y).item()
    model.training = True
    return loss


tx, ty = make(300)
vx, vy = make(1500)
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
it = 0
for epoch in range(EPOCHS):
    for idx in torch.randperm(len(tx)).split(BATCH):
        loss = F.cross_entropy(model(tx[idx]), ty[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        it += 1
        if it % EVAL_EVERY == 0:
            v = evaluate(model, vx, vy)
            if it % 100 == 0:
                print(it, loss.item(), v)
print("result:", v)
