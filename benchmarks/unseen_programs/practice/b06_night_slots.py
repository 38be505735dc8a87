"""Train a denoiser for gel lanes in short compute slots, each resuming from a checkpoint."""
import torch
torch.set_num_threads(1)
torch.manual_seed(30)
import os
import tempfile
from torch import nn

SLOTS, STEPS_PER_SLOT, SIZE = 24, 12, 96


def gels(n, gen):
    axis = torch.arange(SIZE)
    lane = torch.zeros(n, SIZE)
    for _ in range(4):
        row = torch.randint(12, (n, 1), generator=gen) * 8 + 4
        amount = 0.5 + torch.rand(n, 1, generator=gen)
        lane += amount * torch.exp(-((axis - row) / 2.0) ** 2)
    smear = torch.rand(n, 1, generator=gen) * torch.exp(-axis / 30.0)
    noisy = lane + smear + 0.3 * torch.randn(n, SIZE, generator=gen)
    return noisy, lane


def build():
    model = nn.Sequential(
        nn.Linear(SIZE, 128), nn.ReLU(),
        nn.Linear(128, 128), nn.ReLU(),
        nn.Linear(128, SIZE))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", growth_interval=500)
    return model, opt, scaler


def save(path, model, opt, scaler, slot):
    state = {
        "model": model.state_dict(),
        "opt": opt.state_dict(),
        "slot": slot,
        "rng": torch.get_rng_state(),
    }
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def load(path, model, opt, scaler):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    torch.set_rng_state(state["rng"])
    return state["slot"] + 1


def squared_error(pred, clean):
    return (pred.float() - clean).square().sum()


def run_slot(path):
    model, opt, scaler = build()
    slot = load(path, model, opt, scaler) if os.path.exists(path) else 0
    gen = torch.Generator().manual_seed(1000 + slot)
    for _ in range(STEPS_PER_SLOT):
        noisy, clean = gels(128, gen)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(noisy)
            loss = squared_error(pred, clean)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    save(path, model, opt, scaler, slot)
    print(f"slot {slot} loss {loss.item():.3f} scale {scaler.get_scale():.0f}")
    return model


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.pt")
    for _ in range(SLOTS):
        model = run_slot(path)

noisy, clean = gels(200, torch.Generator().manual_seed(7))
with torch.no_grad():
    print("RESULT", squared_error(model(noisy), clean).item() / len(noisy))
