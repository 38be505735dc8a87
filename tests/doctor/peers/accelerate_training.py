"""A small training by Accelerate: bf16, accumulation, clipping, a schedule, saved state."""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    set_seed(3)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    images = torch.randn(54, 8)
    data = DataLoader(TensorDataset(images, images[:, :3].argmax(1)), 6)
    model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
    for _ in range(2):
        model.train()
        for given, wanted in data:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(given), wanted)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            print(loss.item().hex())  # noqa: T201  # what the test compares
        model.eval()
        for given, wanted in data:
            with torch.no_grad():
                loss = nn.functional.cross_entropy(model(given), wanted)
            print(accelerator.gather_for_metrics(loss).item().hex())  # noqa: T201
        with tempfile.TemporaryDirectory() as directory:
            accelerator.save_state(directory)


main()
