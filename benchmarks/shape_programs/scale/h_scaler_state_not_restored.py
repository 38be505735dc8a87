"""Four-fold cross-validation of a forecaster, everything built anew for each fold."""
import torch
from torch import nn

torch.manual_seed(10)
torch.set_num_threads(1)
LAGS = 12


def series(n):
    t = torch.arange(n, dtype=torch.float32)
    return 1.5 * torch.sin(t / 5) + torch.sin(t / 2.3 + 1) + 0.1 * torch.randn(n)


def fresh():
    model = nn.Sequential(nn.Linear(LAGS, 48), nn.ReLU(), nn.Linear(48, 1))
    return model, torch.optim.Adam(model.parameters(), lr=8e-3), torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)


def run_fold(x, y, held):
    model, opt, scaler = fresh()
    keep = (~held).nonzero().flatten()
    for _ in range(36):
        pick = keep[torch.randint(0, len(keep), (64,))]
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            out = model(x[pick])
        scaler.scale((out.float() - y[pick]).pow(2).mean()).backward()
        scaler.step(opt)
        scaler.update()
    with torch.no_grad():
        return (model(x[held]) - y[held]).abs().mean()


rows = series(600).unfold(0, LAGS + 1, 1)
x, y = rows[:, :-1], rows[:, -1:]
fold = torch.arange(len(x)) * 4 // len(x)
scores = torch.stack([run_fold(x, y, fold == k) for k in range(4)])
print("folds", scores.tolist())
print("RESULT", float(scores.mean()))
