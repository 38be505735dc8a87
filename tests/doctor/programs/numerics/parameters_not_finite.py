"""A checkpoint that was saved in fp16 contains inf in place of a weight above 65504."""

import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast, half_steps

CODE = "PARAMETERS_NOT_FINITE"


def from_checkpoint(weight: float) -> nn.Module:
    model = classifier()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["3.weight"][1, 4] = weight
    model.load_state_dict({name: value.half() for name, value in state.items()})
    return model


def broken() -> None:
    half_steps(from_checkpoint(7e4))


def mended() -> None:
    half_steps(from_checkpoint(0.1))


def broken_by_a_parameter_outside_of_the_model() -> None:
    model = classifier()
    gain = nn.Parameter(torch.full((3,), float("nan")))  # torch.empty may contain it
    optimizer = torch.optim.SGD([*model.parameters(), gain], lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        with half_autocast():
            loss = functional.cross_entropy(model(images) * gain, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_by_a_division_before_the_first_step() -> None:
    model = classifier()
    nn.init.zeros_(model[3].weight)
    with torch.no_grad():
        model[3].weight.div_(model[3].weight.norm(dim=1, keepdim=True))
    half_steps(model)


def prior(least: float, decay: float) -> None:
    """The bias begins at the logarithms of the shares of classes; one was never seen."""
    model = classifier()
    shares = torch.tensor([0.5, 0.5, 0.0]).clamp(min=least)
    model[3].bias = nn.Parameter(shares.log())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=decay)
    for images, labels in batches(6):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels.clamp(max=1)).backward()
        optimizer.step()


def broken_by_the_logarithm_of_an_empty_class() -> None:
    prior(least=0.0, decay=1e-4)


def healthy_logarithm_of_a_small_class() -> None:
    prior(least=1e-3, decay=1e-4)


def healthy_class_that_is_switched_off() -> None:
    prior(least=0.0, decay=0.0)


def updates_by_hand(*, unused: bool = False) -> None:
    """The loop updates the parameters without an optimizer, at a learning rate that is too high."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    _ = torch.optim.SGD(model.parameters(), lr=0.1) if unused else None
    for images, _ in batches(40):
        model.zero_grad()
        functional.mse_loss(model(images), images.sum(1, keepdim=True)).backward()
        with torch.no_grad():
            for each in model.parameters():
                each.sub_(30.0 * each.grad)


def updates_by_hand_beside_an_unused_optimizer() -> None:
    updates_by_hand(unused=True)
