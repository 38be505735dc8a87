import torch
import torch.nn as nn
import torch.optim as optim
import torch.optim.lr_scheduler as lr_scheduler

torch.manual_seed(44)
torch.set_num_threads(1)
NUM_EPOCHS = 36


def noisy_function(n, noise):
    x = torch.rand(n, 2) * 2 - 1
    y = torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:])
    return x, y + noise * torch.randn(n, 1)


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


model = nn.Sequential(nn.Linear(2, 64), Sine(), nn.Linear(64, 64), Sine(), nn.Linear(64, 1))
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_EPOCHS // 4, eta_min=1e-5)
loss_fn = nn.MSELoss()
xt, yt = noisy_function(800, 0.5)
xv, yv = noisy_function(1000, 0.0)

for epoch in range(NUM_EPOCHS):
    model.train()
    perm = torch.randperm(len(xt))
    for i in range(0, len(xt), 20):
        idx = perm[i:i + 20]
        loss = loss_fn(model(xt[idx]), yt[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    scheduler.step()
    if epoch % 9 == 8:
        model.eval()
        with torch.no_grad():
            print(f"epoch {epoch + 1}: val {loss_fn(model(xv), yv).item():.5f}")

with torch.no_grad():
    print(f"result: {loss_fn(model(xv), yv).item():.5f}")
