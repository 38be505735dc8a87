"""A layer that keeps a half copy of its weight, made under no_grad."""

import torch
from torch import nn

from doctor.loops import batches, half_autocast

CODE = "WEIGHT_CAST_WITHOUT_GRADIENT"


class Copied(nn.Linear):
    """A linear layer that casts its weight itself.

    Args:
        features: Number of inputs.
        classes: Number of outputs.
        recorded: Whether autograd sees the cast.
    """

    def __init__(self, features: int, classes: int, *, recorded: bool) -> None:
        super().__init__(features, classes)
        self.recorded = recorded

    def forward(self, inputs):
        with torch.set_grad_enabled(self.recorded):
            weight = self.weight.bfloat16()
        return nn.functional.linear(inputs.bfloat16(), weight).float() + self.bias


def train(layer) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for images, labels in batches(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(Copied(8, 3, recorded=False))


def mended() -> None:
    train(Copied(8, 3, recorded=True))


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3) * 0.1)

    def forward(self, inputs):
        return (inputs.half() @ self.weight.detach().half()).float()


def broken_detached() -> None:
    train(Detached())


def healthy_teacher_and_student_in_one_autocast_block() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            with torch.no_grad():
                before = model(images)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss = loss + nn.functional.mse_loss(model(images * 0.9), before)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def healthy_unused_parameters() -> None:
    layer = nn.Linear(8, 3)
    layer.spare = nn.Parameter(torch.zeros(3))
    train(layer)


class Stored(nn.Linear):
    """A layer whose cast weight is stored, for all its calls in a step."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.stored = None

    def forward(self, inputs):
        if self.stored is None:
            self.stored = self.weight.bfloat16()
        return nn.functional.linear(inputs.bfloat16(), self.stored).float() + self.bias


def train_with_a_first_guess(*, clears: bool) -> None:
    """The guess is made without gradients, and may leave the cast weight of the layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), Stored(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for images, labels in batches(6):
        model[2].stored = None
        with torch.no_grad():
            guess = model(torch.cat([images, torch.zeros(len(images), 3)], 1))
        if clears:
            model[2].stored = None
        optimizer.zero_grad()
        outputs = model(torch.cat([images, guess], 1))
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()


def broken_by_a_stored_cast() -> None:
    train_with_a_first_guess(clears=False)


def healthy_cast_that_is_stored_with_gradients() -> None:
    train_with_a_first_guess(clears=True)


def healthy_half_copy_of_a_frozen_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Stored(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[2].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW([*model[0].parameters(), *model[4].parameters()], lr=0.01)
    for images, labels in batches(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
