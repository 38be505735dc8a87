"""Pretrain a vibration encoder under DDP, then train on few labelled machines."""
import os
import tempfile

import torch

torch.set_num_threads(1)
torch.manual_seed(7)

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

LENGTH, FAULTS = 128, 5


def vibration(n, seed):
    """A fault shows as a resonance of its own frequency, repeated at random times."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, FAULTS, (n,), generator=g)
    t = torch.arange(LENGTH)
    signal = 0.5 * torch.sin(0.2 * t + 6.28 * torch.rand(n, 1, generator=g))
    for _ in range(3):
        start = LENGTH * torch.rand(n, 1, generator=g)
        age = (t - start).clamp(min=0)
        ring = torch.exp(-age / 12) * torch.sin((0.5 + 0.35 * y[:, None]) * age)
        signal = signal + 1.3 * ring * (age > 0)
    return (signal + 0.4 * torch.randn(n, LENGTH, generator=g))[:, None], y


class Encoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 15, padding=7), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 9, stride=2, padding=4), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 9, stride=2, padding=4), nn.BatchNorm1d(width), nn.ReLU(),
        )
        self.head = nn.Linear(width, FAULTS)

    def forward(self, x):
        return self.head(self.body(x).amax(-1))


def pretrain(path, tmp):
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp}/store", rank=0, world_size=1
    )
    x, y = vibration(1920, 1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = DistributedDataParallel(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
        print(f"pretraining epoch {epoch} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "epoch": epoch}, path)
    dist.destroy_process_group()


def finetune(path):
    """The new plant numbers its faults differently, so the head starts afresh."""
    torch.manual_seed(70)
    model = Encoder()
    state = torch.load(path, weights_only=True)["model"]
    state = {k: v for k, v in state.items() if "head" not in k}
    model.load_state_dict(state, strict=False)
    for p in model.body.parameters():
        p.requires_grad_(False)
    x, y = vibration(60, 2)
    y = (y + 2) % FAULTS
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=2e-2)
    for step in range(80):
        model.train()
        model.body.eval()
        pick = torch.randperm(len(x))[:20]
        loss = nn.functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step} loss {loss.item():.4f}")
    return model.eval()


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "encoder.pt")
        pretrain(path, tmp)
        model = finetune(path)
    x, y = vibration(600, 3)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), (y + 2) % FAULTS).item()
    print(f"RESULT {loss:.4f}")


if __name__ == "__main__":
    main()
