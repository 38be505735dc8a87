"""A momentum of 0.001 moves the running statistics of a short training only a little."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from doctor.loops import batches

CODE = "NORM_STATISTICS_INITIAL"


def train(momentum, count: int = 60, *, evaluates: bool = True) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(count):
        optimizer.zero_grad()
        functional.cross_entropy(model(3 + images), labels).backward()
        optimizer.step()
    model.eval()
    if evaluates:
        with torch.no_grad():
            model(3 + next(iter(batches(1)))[0])
    return model


def broken() -> None:
    train(0.001)


def mended() -> None:
    train(0.1)


def broken_momentum_of_zero() -> None:
    train(0.0)


def healthy_average_over_all() -> None:
    train(None)


def healthy_few_steps() -> None:
    train(0.01, 10)


def healthy_never_evaluated() -> None:
    train(0.001, evaluates=False)


def healthy_loaded_statistics() -> None:
    """Statistics of a long training that go on with a small momentum."""
    model = train(0.1, evaluates=False)
    model[1].momentum = 0.001
    model[1].num_batches_tracked += 100_000
    with torch.no_grad():
        model(3 + next(iter(batches(1)))[0])


def train_functionally(buffers_of, *, count: int = 40) -> None:
    """Train parameters apart from their model; `buffers_of(buffers)` are those of a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    buffers = {name: each.clone() for name, each in model.named_buffers()}
    optimizer = torch.optim.SGD([each.requires_grad_() for each in weights.values()], lr=0.05)
    for images, labels in batches(count):
        outputs = functional_call(model, (weights, buffers_of(buffers)), (3 + images,))
        optimizer.zero_grad()
        functional.cross_entropy(outputs, labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        functional_call(model, (weights, buffers), (3 + images,))


def broken_by_copies_of_the_buffers() -> None:
    train_functionally(lambda buffers: {name: each.clone() for name, each in buffers.items()})


def healthy_buffers_that_go_on() -> None:
    train_functionally(lambda buffers: buffers)


def healthy_test_of_a_few_steps_with_copies() -> None:
    train_functionally(lambda buffers: {name: +each for name, each in buffers.items()}, count=4)


def healthy_evaluation_before_the_training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    model.eval()
    with torch.no_grad():
        model(next(iter(batches(1)))[0])
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(40):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def evaluate_another(load, *, again: bool = False, mode: bool = True) -> None:
    """Train a model, fill another one by `load(other, model)`, and evaluate the other one."""
    torch.manual_seed(0)
    model, other = (
        nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        for _ in range(2)
    )

    def fit(net: nn.Module, count: int) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for images, labels in batches(count):
            optimizer.zero_grad()
            functional.cross_entropy(net(3 + images), labels).backward()
            optimizer.step()

    fit(model.train(mode), 40)
    load(other, model)
    other.eval()
    with torch.no_grad():
        other(3 + next(iter(batches(1)))[0])
    if again:
        fit(other.train(), 4)


def without_buffers(other: nn.Module, model: nn.Module) -> None:
    other.load_state_dict(dict(model.named_parameters()), strict=False)


def broken_by_a_copy_of_the_parameters() -> None:
    evaluate_another(without_buffers)


def healthy_copy_of_the_whole_state() -> None:
    evaluate_another(lambda other, model: other.load_state_dict(model.state_dict()))


def healthy_other_model_of_the_same_kind() -> None:
    evaluate_another(lambda other, model: None)


def healthy_copy_that_is_trained_later() -> None:
    evaluate_another(without_buffers, again=True)


def healthy_copy_of_a_model_whose_norms_stay_in_evaluation_mode() -> None:
    evaluate_another(without_buffers, mode=False)
