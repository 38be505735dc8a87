"""BCELoss under fp16 autocast, with probabilities near 0 and 1."""

import torch
from torch import nn

from doctor.loops import batches, classifier, half_autocast

CODE = "BCE_UNDER_AUTOCAST"


def train(criterion, *, probabilities: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images) * 30
            outputs = outputs.sigmoid() if probabilities else outputs
            loss = criterion(outputs, nn.functional.one_hot(labels, 3).to(outputs.dtype))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken() -> None:
    train(nn.BCELoss(), probabilities=True)


def mended() -> None:
    train(nn.BCEWithLogitsLoss(), probabilities=False)


def broken_by_probabilities_that_are_widened_too_late() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            probabilities = (model(images) * 30).sigmoid()
        targets = nn.functional.one_hot(labels, 3).float()
        scaler.scale(nn.functional.binary_cross_entropy(probabilities.float(), targets)).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_before_any_step_is_skipped() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            probabilities = model(images).sigmoid()
            targets = nn.functional.one_hot(labels, 3).to(probabilities.dtype)
            loss = nn.functional.binary_cross_entropy(probabilities, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train_on_float(probabilities_of) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with half_autocast():
            targets = nn.functional.one_hot(labels, 3).float()
            loss = nn.functional.binary_cross_entropy(probabilities_of(model(images)), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_probabilities_that_were_rounded_before() -> None:
    train_on_float(lambda logits: logits.sigmoid().float())


def healthy_with_probabilities_that_are_made_in_fp32() -> None:
    train_on_float(lambda logits: logits.float().sigmoid())


class Objective(nn.Module):
    """A loss of the program's own, which calls torch's.

    Args:
        widens: Whether the probabilities are made in fp32.
    """

    def __init__(self, *, widens: bool = False) -> None:
        super().__init__()
        self.measure, self.widens = nn.BCELoss(), widens

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = logits.float() if self.widens else logits
        return self.measure(logits.sigmoid(), nn.functional.one_hot(labels, 3).float())


def train_with(objective) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = objective(model(images), labels)
        loss.backward()
        optimizer.step()


def broken_in_a_module() -> None:
    train_with(Objective())


def healthy_module_that_widens() -> None:
    train_with(Objective(widens=True))


def healthy_module_outside_of_autocast() -> None:
    objective = Objective(widens=True)

    def outside(logits, labels):
        with torch.autocast("cpu", enabled=False):
            return objective(logits, labels)

    train_with(outside)
