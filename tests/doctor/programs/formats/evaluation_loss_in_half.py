"""A validation loss of fp16 outputs, outside of autocast."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "EVALUATION_LOSS_IN_HALF"


def train(evaluate) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    model.eval()
    with torch.no_grad():
        for images, labels in batches(3, seed=1):
            evaluate(model, images * 2e4, labels)
    model.train()


def _outputs(model, images) -> torch.Tensor:
    with half_autocast():
        return model(images)


def broken() -> None:
    train(
        lambda model, images, labels: nn.functional.cross_entropy(
            _outputs(model, images), labels, reduction="sum"
        )
    )


def mended() -> None:
    train(
        lambda model, images, labels: nn.functional.cross_entropy(
            _outputs(model, images).float(), labels, reduction="sum"
        )
    )


def broken_squared_error() -> None:
    criterion = nn.MSELoss()
    train(
        lambda model, images, labels: criterion(
            _outputs(model, images), nn.functional.one_hot(labels, 3).half()
        )
    )


def broken_by_hand() -> None:
    def evaluate(model, images, labels) -> float:
        wrong = _outputs(model, images) - nn.functional.one_hot(labels, 3).half()
        return wrong.square().mean().item()

    train(evaluate)


def healthy_metrics_of_half_outputs() -> None:
    def evaluate(model, images, labels) -> float:
        outputs = _outputs(model, images)
        masked = outputs.masked_fill(outputs < 0, float("-inf"))
        return float(masked.argmax(1).eq(labels).float().mean() + outputs.softmax(1).max())

    train(evaluate)


def healthy_inside_autocast() -> None:
    @half_autocast()
    def evaluate(model, images, labels) -> torch.Tensor:
        return nn.functional.cross_entropy(model(images), labels, reduction="sum")

    train(evaluate)
