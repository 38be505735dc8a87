"""Classify sleep stages from short EEG epochs with a convolutional network."""
import torch
torch.set_num_threads(1)
torch.manual_seed(190)
import math
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

STAGES, LENGTH = 5, 120
SETTINGS = {
    "lr": 3e-3,
    "epochs": 8,
    "batch_size": 64,
    "decay": "linear",
    "weight_decay": 1e-3,
}


def eeg(n, seed):
    g = torch.Generator().manual_seed(seed)
    stage = torch.randint(STAGES, (n,), generator=g)
    base = torch.tensor([11.0, 7.0, 5.0, 2.0, 8.5])[stage]
    freq = base + 0.5 * torch.randn(n, generator=g)
    t = torch.linspace(0, 3, LENGTH)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    wave = torch.sin(2 * math.pi * freq[:, None] * t + phase)
    spindle = (stage == 2)[:, None] * torch.sin(2 * math.pi * 14 * t) * (t > 1.5)
    return (wave + spindle + 0.9 * torch.randn(n, LENGTH, generator=g))[:, None], stage


def make_model():
    return nn.Sequential(
        nn.Conv1d(1, 16, 15, stride=2, padding=7), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 24, 9, stride=2, padding=4), nn.BatchNorm1d(24), nn.ReLU(),
        nn.AdaptiveAvgPool1d(5), nn.Flatten(), nn.Dropout(0.1), nn.Linear(120, STAGES))


def make_schedule(opt, loader, settings):
    total = len(loader)
    if settings["decay"] == "linear":
        return torch.optim.lr_scheduler.LambdaLR(opt, lambda s: max(0.0, 1 - s / total))
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0)


def evaluate(model, loader):
    model.eval()
    loss = hits = n = 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(x)
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            hits += (logits.argmax(1) == y).sum().item()
            n += len(y)
    model.train()
    return loss / n, hits / n


def main(settings):
    train_loader = DataLoader(TensorDataset(*eeg(2048, 1)), settings["batch_size"], shuffle=True)
    val_loader = DataLoader(TensorDataset(*eeg(600, 2)), 200)
    model = make_model()
    opt = torch.optim.AdamW(model.parameters(), lr=settings["lr"],
                            weight_decay=settings["weight_decay"])
    sched = make_schedule(opt, train_loader, settings)
    for epoch in range(settings["epochs"]):
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        val, acc = evaluate(model, val_loader)
        print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f} accuracy {acc:.3f}")
    print("RESULT", evaluate(model, val_loader)[0])


main(SETTINGS)
