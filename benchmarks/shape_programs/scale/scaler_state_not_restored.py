"""Walk-forward forecasting: the model is refitted on every new window of the series."""
import torch
from torch import nn

torch.manual_seed(10)
torch.set_num_threads(1)
LAGS = 12


def series(n):
    t = torch.arange(n, dtype=torch.float32)
    return 6 * torch.sin(t / 5) + 4 * torch.sin(t / 2.3 + 1) + 0.3 * torch.randn(n)


def windows(values):
    rows = values.unfold(0, LAGS + 1, 1)
    return rows[:, :-1], rows[:, -1:]


def make_stepper(model, opt, precision=torch.float16):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 21)

    def stepper(x, y):
        opt.zero_grad()
        with torch.autocast("cpu", precision):
            out = model(x)
        loss = (out.float() - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.detach()

    return stepper


def refit(stepper, past, steps):
    x, y = windows(past)
    for _ in range(steps):
        pick = torch.randint(0, len(x), (64,))
        stepper(x[pick], y[pick])


values = series(900)
model = nn.Sequential(nn.Linear(LAGS, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
errors = []
for end in range(300, 900, 50):
    refit(make_stepper(model, opt), values[end - 300:end], 12)
    with torch.no_grad():
        x, y = windows(values[end - LAGS:end + 50])
        errors.append((model(x) - y).abs().mean())

print("RESULT", float(torch.stack(errors[-4:]).mean()))
