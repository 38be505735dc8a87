"""The loss of one batch overflows fp32, and the step is applied to the weights."""

import torch

from doctor.loops import Around, batches, classifier, half_autocast, plain_steps

CODE = "NOT_FINITE"


def train(*, guarded: bool) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(6)):
        optimizer.zero_grad()
        factor = 1e12 if number == 3 else 1.0
        loss = (model(images) * factor).pow(4).mean()
        if guarded and not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()


def broken() -> None:
    train(guarded=False)


def mended() -> None:
    train(guarded=True)


def train_with_a_scaler(factor: float, init_scale: float) -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    for number, (images, _) in enumerate(batches(12)):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images).float()
        loss = (outputs * (factor if number == 9 else 1.0)).pow(4).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def broken_in_a_skipped_step() -> None:
    train_with_a_scaler(factor=1e12, init_scale=64.0)


def broken_in_a_gradient_that_no_scale_makes_finite() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number, (images, _) in enumerate(batches(12)):
        optimizer.zero_grad()
        with half_autocast():
            outputs = model(images).float()
        loss = (outputs * (1e5 if number % 3 == 2 else 1.0)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def healthy_search_of_a_loss_scale() -> None:
    train_with_a_scaler(factor=1.0, init_scale=2.0**24)


def broken_until_the_loop_restores_good_weights() -> None:
    model = classifier()
    good = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (images, _) in enumerate(batches(6)):
        optimizer.zero_grad()
        (model(images) * (1e12 if number == 3 else 1.0)).pow(4).mean().backward()
        optimizer.step()
    model.load_state_dict(good)


def train_on_maxima(start: float) -> None:
    """Each node of a graph gets the maximum of its neighbours; the last node has none."""

    def maxima(features: torch.Tensor) -> torch.Tensor:
        to = torch.arange(7)[:, None].expand(7, 16)
        return torch.full((8, 16), start).scatter_reduce(0, to, features[1:], "amax")

    plain_steps(Around(maxima), torch.nn.functional.cross_entropy)


def broken_by_the_maximum_of_nothing() -> None:
    train_on_maxima(float("-inf"))


def healthy_maximum_from_a_finite_start() -> None:
    train_on_maxima(-4.0)
