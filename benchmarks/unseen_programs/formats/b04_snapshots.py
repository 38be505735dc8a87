import io

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)


class Pendulum:
    """Predicts the state of a damped pendulum a short time ahead."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def batch(self, n):
        angle = (torch.rand(n, generator=self.gen) * 2 - 1) * 3
        speed = torch.randn(n, generator=self.gen)
        start = torch.stack([angle.sin(), angle.cos(), speed], dim=1)
        a, s = angle.clone(), speed.clone()
        for _ in range(10):
            s = s + 0.05 * (-2.0 * a.sin() - 0.3 * s)
            a = a + 0.05 * s
        return start, torch.stack([a.sin(), a.cos(), s], dim=1)


def make_model():
    return nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3))


class Snapshots:
    """Keeps the last few weight files in memory, in a compact format."""

    def __init__(self, keep=3):
        self.keep = keep
        self.files = []

    def save(self, model, step):
        buffer = io.BytesIO()
        weights = model.bfloat16().state_dict()
        torch.save({"step": step, "weights": weights}, buffer)
        model.float()
        self.files.append(buffer.getvalue())
        self.files = self.files[-self.keep:]

    def newest(self):
        return torch.load(io.BytesIO(self.files[-1]))


def fit(model, steps=1800, every=2):
    source = Pendulum(1)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-6)
    store = Snapshots()
    for step in range(1, steps + 1):
        x, y = source.batch(96)
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % every == 0:
            store.save(model, step)
        if step % 300 == 0:
            print(step, f"{loss.item():.6f}")
    return store


@torch.no_grad()
def relative_error(model):
    x, y = Pendulum(99).batch(4000)
    return ((model(x) - y).square().mean() / y.var()).item()


if __name__ == "__main__":
    model = make_model()
    store = fit(model)
    print("last snapshot at step", store.newest()["step"], "bytes", len(store.files[-1]))
    print("RESULT", relative_error(model))
