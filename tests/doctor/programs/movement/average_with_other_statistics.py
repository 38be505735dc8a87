"""An average of the parameters is evaluated, whose norm layers have never seen data."""

import copy

import torch
from torch import nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from doctor.loops import batches, classifier

CODE = "AVERAGE_WITH_OTHER_STATISTICS"
EMA = get_ema_multi_avg_fn(0.9)


def train(update, *, average=copy.deepcopy, ends=None, mode: bool = False) -> None:
    """Train, and evaluate the average after `ends(average)`."""
    model = classifier()
    averaged = average(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        update(averaged, model)
    if ends is not None:
        ends(averaged)
    averaged.train(mode)
    with torch.no_grad():
        averaged(images)


@torch.no_grad()
def parameters(average, model) -> None:
    for value, other in zip(average.parameters(), model.parameters(), strict=True):
        value.lerp_(other, 0.1)


@torch.no_grad()
def state(average, model) -> None:
    mine = model.state_dict()
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            value.lerp_(mine[name], 0.1)


def of_torch(average, model) -> None:
    average.update_parameters(model)


def broken() -> None:
    train(parameters)


def mended() -> None:
    train(state)


def broken_in_assigned_data() -> None:
    def update(average, model) -> None:
        for value, other in zip(average.parameters(), model.parameters(), strict=True):
            value.data = 0.9 * value.data + 0.1 * other.data

    train(update)


def broken_without_update_bn() -> None:
    train(of_torch, average=AveragedModel)


def healthy_update_bn() -> None:
    data = [images for images, _ in batches(6)]
    train(of_torch, average=AveragedModel, ends=lambda average: update_bn(data, average))


def healthy_averaged_buffers() -> None:
    train(of_torch, average=lambda model: AveragedModel(model, use_buffers=True))


def healthy_exponential_average_with_copied_buffers() -> None:
    train(of_torch, average=lambda model: AveragedModel(model, multi_avg_fn=EMA))


def healthy_copied_buffers() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        parameters(average, model)
        for value, other in zip(average.buffers(), model.buffers(), strict=True):
            value.copy_(other)

    train(update)


def healthy_teacher_in_training_mode() -> None:
    """A teacher that computes its statistics from each batch."""
    train(parameters, mode=True)


def healthy_frozen_copy() -> None:
    train(lambda average, model: None)


def in_a_shell(*, with_buffers: bool = False, starts: bool = False) -> None:
    """Evaluate weights that a dict holds in a model that has never been trained itself."""
    model, shell = classifier(), classifier().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    average = {name: each.detach().clone() for name, each in model.named_parameters()}
    for images, labels in batches(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if not starts:
            for name, each in model.named_parameters():
                average[name] = 0.8 * average[name] + 0.2 * each.detach()
    if with_buffers:
        average |= dict(model.named_buffers())
    with torch.no_grad():
        functional_call(shell, average, (images,))


def broken_in_a_functional_call() -> None:
    in_a_shell()


def healthy_functional_call_with_buffers() -> None:
    in_a_shell(with_buffers=True)


def healthy_weights_of_the_start() -> None:
    in_a_shell(starts=True)


def train_with_spectral_norms(spectral, update) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(spectral(nn.Linear(6, 16)), nn.ReLU(), spectral(nn.Linear(16, 3)))
    averaged = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for images, labels in batches(24):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        update(averaged, model)
    with torch.no_grad():
        averaged(images)


@torch.no_grad()
def parameters_and_copies(average, model) -> None:
    parameters(average, model)
    for value, other in zip(average.buffers(), model.buffers(), strict=True):
        value.copy_(other)


def broken_in_vectors_of_spectral_norms() -> None:
    train_with_spectral_norms(nn.utils.parametrizations.spectral_norm, state)


def broken_in_vectors_of_hooks() -> None:
    train_with_spectral_norms(nn.utils.spectral_norm, state)


def healthy_copies_of_vectors() -> None:
    train_with_spectral_norms(nn.utils.parametrizations.spectral_norm, parameters_and_copies)
