"""fp16 training with a gradient penalty on the inputs and a gradient scaler."""
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)

LAMBDA = 0.05


def energy(x):
    return torch.sin(2 * x[:, 0]) * x[:, 1] + 0.5 * x[:, 2] ** 2 - torch.cos(x[:, 3])


def sample(n):
    x = torch.rand(n, 4) * 3 - 1.5
    return x, energy(x).unsqueeze(1) + 0.3 * torch.randn(n, 1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    model = Critic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10_000)
    train_x, train_y = sample(1500)
    for epoch in range(16):
        for idx in torch.randperm(len(train_x)).split(50):
            x = train_x[idx].clone().requires_grad_(True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
                fit = nn.functional.mse_loss(out.float(), train_y[idx])
            (g,) = torch.autograd.grad(scaler.scale(out.float().mean()), x, create_graph=True)
            penalty = (g * len(idx)).pow(2).sum(1).mean()
            scaler.scale(fit + LAMBDA * penalty).backward()
            scaler.step(optimizer)
            scaler.update()
        if epoch % 4 == 0:
            print(f"epoch {epoch} fit {fit.item():.4f} scale {scaler.get_scale()}")
    model.eval()
    vx, _ = sample(2000)
    with torch.no_grad():
        return nn.functional.mse_loss(model(vx).squeeze(1), energy(vx)).item()


print("RESULT", main())
