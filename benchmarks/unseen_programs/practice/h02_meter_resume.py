"""Forecast household power in fp16 with two optimizers, a resume and a filter for bad batches."""
import torch
torch.set_num_threads(1)
torch.manual_seed(311)
import math
import os
import tempfile
from torch import nn

HOMES, HISTORY = 80, 24


def households(n, gen=None):
    home = torch.randint(HOMES, (n,), generator=gen)
    habit = torch.randn(HOMES, 3, generator=torch.Generator().manual_seed(2))[home]
    hour = torch.rand(n, 1, generator=gen) * 24 + torch.arange(HISTORY + 1) / 2
    day = 2 * math.pi * hour / 24
    use = 1 + 0.5 * habit[:, :1] * torch.sin(day) + 0.4 * habit[:, 1:2] * torch.cos(2 * day)
    use = use + 0.3 * habit[:, 2:] + 0.05 * torch.randn(use.shape, generator=gen)
    return home, use[:, :-1], use[:, -1]


def with_dropouts(home, x, y):
    """Some transmissions arrive with the meter's error code in place of readings."""
    if torch.rand(()).item() < 0.05:
        x = x.clone()
        x[0] = 9999.0
    return home, x, y


class LoadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.home = nn.Embedding(HOMES, 8)
        self.net = nn.Sequential(nn.Linear(HISTORY + 8, 64), nn.SiLU(), nn.Linear(64, 64),
                                 nn.SiLU(), nn.Linear(64, 1))

    def forward(self, home, x):
        return self.net(torch.cat([x, self.home(home)], 1)).squeeze(1)


def build():
    model = LoadNet()
    opts = (torch.optim.SGD(model.home.parameters(), lr=0.5),
            torch.optim.AdamW(model.net.parameters(), lr=3e-3))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=60)
    return model, opts, scaler


def train(model, opts, scaler, steps):
    dropped = 0
    for _ in range(steps):
        home, x, y = with_dropouts(*households(96))
        if x.max() > 100:
            dropped += 1
            continue
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(home, x)
        loss = nn.functional.mse_loss(pred.float(), y)
        for opt in opts:
            opt.zero_grad()
        scaler.scale(loss).backward()
        for opt in opts:
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            scaler.step(opt)
        scaler.update()
    print(f"loss {loss.item():.5f} scale {scaler.get_scale():.0f} dropped {dropped}")


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "state.pt")
    model, opts, scaler = build()
    train(model, opts, scaler, 130)
    torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts],
                "scaler": scaler.state_dict()}, path)
    model, opts, scaler = build()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for opt, s in zip(opts, state["opts"]):
        opt.load_state_dict(s)
    scaler.load_state_dict(state["scaler"])
    train(model, opts, scaler, 130)

home, x, y = households(1000, torch.Generator().manual_seed(6))
with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(home, x), y).item())
