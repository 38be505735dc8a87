"""A small training by Lightning Fabric: fp16 with its scaler, clipping, a checkpoint."""

import logging
import tempfile
from pathlib import Path

import lightning
import torch
from lightning.fabric.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.fabric").setLevel(logging.ERROR)


def main() -> None:
    lightning.seed_everything(3, verbose=False)
    precision = MixedPrecision("16-mixed", device="cpu", scaler=torch.amp.GradScaler("cpu"))
    fabric = lightning.Fabric(accelerator="cpu", devices=1, plugins=precision)
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    images = torch.randn(48, 8)
    labels = images[:, :3].argmax(1)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(images, labels), 6))
    for _ in range(2):
        for number, (given, wanted) in enumerate(loader):
            last = number % 2 == 1
            with fabric.no_backward_sync(model, enabled=not last):
                loss = nn.functional.cross_entropy(model(given), wanted)
                fabric.backward(loss / 2)
            if last:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            print(loss.item().hex())  # noqa: T201  # what the test compares
    with tempfile.TemporaryDirectory() as directory:
        # Fabric leaves its precision plugin's scaler out, of which doctor would have told.
        state = {"model": model, "optimizer": optimizer, "scaler": precision.scaler.state_dict()}
        fabric.save(Path(directory) / "state.ckpt", state)


main()
