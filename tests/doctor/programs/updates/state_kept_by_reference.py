"""The best state so far is kept without a copy, and loaded at the end."""

import copy

import numpy as np
import torch
from torch import nn

from doctor.loops import batches, classifier

CODE = "STATE_KEPT_BY_REFERENCE"


def steps(model, optimizer, count: int = 5) -> None:
    for images, labels in batches(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def train(keep, *, load: bool = True) -> None:
    """Train; `keep(model)` returns the state of the first part of the training."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps(model, optimizer)
    best = keep(model)
    steps(model, optimizer)
    if load:
        model.load_state_dict(best)


def broken() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps(model, optimizer)
    best = model.state_dict()
    steps(model, optimizer)
    model.load_state_dict(best)


def mended() -> None:
    train(lambda model: copy.deepcopy(model.state_dict()))


def broken_in_a_dict_of_its_own() -> None:
    train(lambda model: {name: each.cpu() for name, each in model.state_dict().items()})


def broken_in_a_shallow_copy() -> None:
    train(lambda model: copy.copy(model.state_dict()))


def arrays(model) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in model.state_dict().items()}


def broken_in_arrays() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps(model, optimizer)
    best = arrays(model)
    steps(model, optimizer)
    model.load_state_dict({name: torch.from_numpy(each) for name, each in best.items()})


def broken_in_detached_tensors() -> None:
    train(lambda model: {name: each.detach() for name, each in model.state_dict().items()})


def healthy_arrays_that_are_loaded_at_once() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        steps(model, optimizer)
        model.load_state_dict(
            {name: torch.from_numpy(each) for name, each in arrays(model).items()}
        )


def healthy_clones() -> None:
    train(lambda model: {name: each.clone() for name, each in model.state_dict().items()})


def healthy_state_that_nothing_loads() -> None:
    train(lambda model: model.state_dict(), load=False)


def healthy_state_of_another_model() -> None:
    """A target network gets the weights from time to time."""
    model = classifier()
    target = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        steps(model, optimizer)
        target.load_state_dict(model.state_dict())


def healthy_state_that_a_file_holds() -> None:
    def keep(model):
        return {name: each.numpy().copy() for name, each in model.state_dict().items()}

    train(lambda model: {name: torch.from_numpy(each) for name, each in keep(model).items()})


def healthy_load_before_more_steps() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps(model, optimizer)
    model.load_state_dict(model.state_dict())
    steps(model, optimizer)


def healthy_state_of_a_model_that_stays() -> None:
    """Only the other model is trained between the two calls."""
    model, other = classifier(), classifier()
    steps(model, torch.optim.SGD(model.parameters(), lr=0.05))
    kept = model.state_dict()
    steps(other, torch.optim.SGD(other.parameters(), lr=0.05))
    model.load_state_dict(kept)


def copy_back(keep, *, every: int = 5) -> None:
    """Copy what `keep(parameter)` returns of each parameter, after each `every` steps."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    best = {name: keep(each) for name, each in model.named_parameters()}
    for _ in range(2):
        steps(model, optimizer, every)
        with torch.no_grad():
            for name, each in model.named_parameters():
                each.copy_(best[name])


def broken_in_copies_of_parameters() -> None:
    copy_back(lambda parameter: parameter.detach())


def healthy_copies_of_fp32_parameters_after_each_step() -> None:
    copy_back(lambda parameter: parameter.detach().float(), every=1)


def healthy_copies_of_one_of_several_parameters() -> None:
    """The other one is kept anew after the steps."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        steps(model, optimizer)
        kept = [each.detach() for each in model.parameters()]
        kept[1:] = [each.clone() for each in kept[1:]]
        with torch.no_grad():
            for each, value in zip(model.parameters(), kept, strict=True):
                each.copy_(value)
