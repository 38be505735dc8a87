"""Regress crop yield with dropout kept at prediction time and averaged over passes."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(104)

FIELDS = 8


def fields(n):
    g = torch.Generator().manual_seed(17)
    w = torch.randn(FIELDS, 3, generator=g) / 2
    x = torch.rand(n, FIELDS) * 2 - 1
    a, b, c = (x @ w).unbind(1)
    y = torch.sin(2 * a) + b * c + 0.5 * b
    return x, y + (0.05 + 0.2 * (x[:, 0] > 0)) * torch.randn(n)


class BayesianNet(nn.Module):
    """Predicts mean and log variance; dropout is on in both modes (Gal and Ghahramani)."""

    def __init__(self, width=96, p=0.05):
        super().__init__()
        self.a = nn.Linear(FIELDS, width)
        self.b = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)
        self.p = p

    def forward(self, x):
        h = F.dropout(torch.tanh(self.a(x)), self.p, training=True)
        h = F.dropout(torch.tanh(self.b(h)), self.p, training=True)
        mean, log_var = self.out(h).unbind(1)
        return mean, log_var.clamp(-8, 4)


def nll(mean, log_var, y):
    return 0.5 * (log_var + (y - mean) ** 2 * torch.exp(-log_var)).mean()


@torch.no_grad()
def predict(model, x, passes=20):
    means, variances = [], []
    for _ in range(passes):
        mean, log_var = model(x)
        means.append(mean)
        variances.append(log_var.exp())
    means = torch.stack(means)
    return means.mean(0), (means.var(0) + torch.stack(variances).mean(0)).log()


def main():
    x, y = fields(3000)
    val_x, val_y = fields(800)
    model = BayesianNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    steps = 400
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        idx = torch.randint(0, len(x), (128,))
        mean, log_var = model(x[idx])
        # the first steps fit the mean only
        loss = F.mse_loss(mean, y[idx]) if step < 80 else nll(mean, log_var, y[idx])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        if step % 80 == 79:
            model.eval()
            mean, log_var = predict(model, val_x)
            model.train()
            print(f"step {step + 1} loss {loss.item():.4f} val {nll(mean, log_var, val_y):.4f}")
    model.eval()
    mean, _ = predict(model, val_x)
    print(f"RESULT {F.mse_loss(mean, val_y).item() / val_y.var().item():.5f}")


if __name__ == "__main__":
    main()
