"""Friedman regression with a small dense network."""
import torch
from torch import nn

torch.set_num_threads(1)

HPARAMS = {
    "units": (64, 64, 32),
    "bn_momentum": 0.99,
    "bn_epsilon": 1e-3,
    "learning_rate": 2e-3,
    "batch_size": 8,
    "epochs": 6,
}


def dense_block(n_in, n_out, hp):
    return [
        nn.Linear(n_in, n_out, bias=False),
        nn.BatchNorm1d(n_out, eps=hp["bn_epsilon"], momentum=hp["bn_momentum"]),
        nn.ReLU(),
    ]


def make_model(n_features, hp):
    layers, n_in = [], n_features
    for n_out in hp["units"]:
        layers += dense_block(n_in, n_out, hp)
        n_in = n_out
    layers.append(nn.Linear(n_in, 1))
    net = nn.Sequential(*layers)
    for m in net.modules():
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            if m.bias is not None:
                nn.init.zeros_(m.bias)
    return net


def friedman(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 10, generator=gen)
    y = (10 * torch.sin(3.14159 * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
         + 10 * x[:, 3] + 5 * x[:, 4] + 0.5 * torch.randn(n, generator=gen))
    return x, y


class Scaler:
    def fit(self, t):
        self.mean, self.std = t.mean(0), t.std(0)
        return self

    def __call__(self, t):
        return (t - self.mean) / self.std


def fit(model, x, y, hp):
    opt = torch.optim.Adam(model.parameters(), lr=hp["learning_rate"])
    n, size = len(x), hp["batch_size"]
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.6)
    for epoch in range(hp["epochs"]):
        model.train()
        order = torch.randperm(n)
        total = 0.0
        for i in range(0, n - size + 1, size):
            idx = order[i:i + size]
            loss = nn.functional.mse_loss(model(x[idx]).squeeze(1), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        decay.step()
        yield epoch, total / (n // size)


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(model(x).squeeze(1), y).item()


if __name__ == "__main__":
    torch.manual_seed(4)
    (x, y), (xv, yv) = friedman(2400, 1), friedman(1000, 2)
    sx, sy = Scaler().fit(x), Scaler().fit(y)
    x, y, xv, yv = sx(x), sy(y), sx(xv), sy(yv)
    model = make_model(x.size(1), HPARAMS)
    for epoch, loss in fit(model, x, y, HPARAMS):
        print(f"epoch {epoch} loss {loss:.4f} val_loss {validate(model, x=xv, y=yv):.4f}")
    print("RESULT", validate(model, xv, yv))
