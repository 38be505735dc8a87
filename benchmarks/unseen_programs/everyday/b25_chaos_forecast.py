"""Learn the next state of a noisy chaotic map in two sessions with a checkpoint between."""
import math
import os
import tempfile

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(2525)

TOTAL_STEPS, WARMUP, BATCH = 360, 20, 24


def trajectory(length, noise=0.25):
    """Coupled logistic maps, observed with noise."""
    x = torch.tensor([0.3, 0.6, 0.45])
    out = []
    for _ in range(length):
        f = 3.8 * x * (1 - x)
        x = 0.9 * f + 0.05 * (f.roll(1) + f.roll(-1))
        out.append(x)
    states = torch.stack(out)
    return states[:-1] * 2 - 1, states[1:] + noise * torch.randn(length - 1, 3)


class StepModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)


def rate(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (TOTAL_STEPS - WARMUP)))


def make_state(lr=0.12):
    model = StepModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, optimizer


def session(path, data, until):
    model, optimizer = make_state()
    start = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
        print(f"resumed at step {start}")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    x, y = data
    for step in range(start, until):
        idx = torch.randint(0, len(x), (BATCH,))
        loss = (model(x[idx]) - y[idx]).pow(2).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % 60 == 0:
            lr = optimizer.param_groups[0]["lr"]
            print(f"step {step + 1} loss {loss.item():.4f} lr {lr:.4f}")
    torch.save({
        "model": model.state_dict(), "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(), "step": until}, path)
    return model


def main():
    data = trajectory(1800)
    test_x, test_y = trajectory(2600, noise=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "state.pt")
        session(path, data, until=TOTAL_STEPS // 2)
        model = session(path, data, until=TOTAL_STEPS)
    model.eval()
    with torch.no_grad():
        error = (model(test_x[1800:]) - test_y[1800:]).pow(2).sum(1).mean().item()
    print(f"RESULT {error:.5f}")


if __name__ == "__main__":
    main()
