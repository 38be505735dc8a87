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


def follow(criterion, rate: float = 1e-3, *, autocast: bool = False) -> None:
    """Train slowly in bf16 autocast, and compute the validation loss after each step."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    held, truth = next(batches(1, seed=1))
    for images, labels in batches(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            outputs = model(held)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            criterion(outputs, truth).item()


def broken_by_rounding() -> None:
    follow(nn.CrossEntropyLoss())


def healthy_that_moves_far() -> None:
    follow(nn.CrossEntropyLoss(), rate=0.5)


def healthy_in_fp32() -> None:
    follow(lambda outputs, labels: nn.functional.cross_entropy(outputs.float(), labels))


def healthy_under_autocast() -> None:
    follow(nn.functional.cross_entropy, autocast=True)


def healthy_accuracy_in_half() -> None:
    follow(lambda outputs, labels: (outputs.argmax(1) == labels).bfloat16().mean())


def healthy_loss_of_another_batch_in_each_step() -> None:
    other = batches(12, seed=2)
    follow(lambda _, labels: nn.functional.cross_entropy(next(other)[0][:, :3].bfloat16(), labels))
