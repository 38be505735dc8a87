"""Checkpoints without the scaler."""

import io
from dataclasses import asdict, dataclass
from typing import Any

import torch

from doctor.loops import batches, classifier, loss_of

CODE = "SCALER_NOT_SAVED"


@dataclass
class Snapshot:
    model: Any
    optimizer: Any
    epoch: int


def train(save) -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
    save(model, optimizer, scaler)


def broken() -> None:
    train(
        lambda model, optimizer, scaler: torch.save(
            {"weights": model.state_dict(), "opt": optimizer.state_dict()}, io.BytesIO()
        )
    )


def mended() -> None:
    train(
        lambda model, optimizer, scaler: torch.save(
            {
                "weights": model.state_dict(),
                "rest": [optimizer.state_dict(), scaler.state_dict()],
            },
            io.BytesIO(),
        )
    )


def broken_snapshot() -> None:
    def save(model, optimizer, scaler) -> None:
        snapshot = Snapshot(model.state_dict(), optimizer.state_dict(), 3)
        torch.save(asdict(snapshot), io.BytesIO())

    train(save)


def healthy_in_a_file_of_its_own() -> None:
    def save(model, optimizer, scaler) -> None:
        torch.save({"optimizer": optimizer.state_dict()}, io.BytesIO())
        torch.save(scaler.state_dict(), io.BytesIO())

    train(save)


def healthy_only_the_weights() -> None:
    train(lambda model, optimizer, scaler: torch.save(model.state_dict(), io.BytesIO()))


def healthy_back_to_the_best_weights() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (images, labels) in enumerate(batches(4)):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, images, labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        if number == 1:
            best = optimizer.state_dict()
        if number == 2:
            optimizer.load_state_dict(best)
