"""The average of the weights is computed from a state dict, and never put into the model."""

import copy

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

from doctor.loops import batches

CODE = "AVERAGE_NEVER_MOVES"
DECAY = 0.9


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def copies(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def train(update, *, average=copy.deepcopy, steps: int = 12) -> None:
    """Train; `update(average, model)` runs after each step."""
    model = net()
    averaged = average(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        update(averaged, model)
    if isinstance(averaged, nn.Module):
        averaged.eval()
        with torch.no_grad():
            averaged(images)


@torch.no_grad()
def lost(average, model) -> None:
    mine = model.state_dict()
    for name, value in average.state_dict().items():
        value = DECAY * value + (1 - DECAY) * mine[name]  # noqa: PLW2901  (the mistake)


@torch.no_grad()
def written(average, model) -> None:
    for value, other in zip(average.parameters(), model.parameters(), strict=True):
        value.mul_(DECAY).add_(other, alpha=1 - DECAY)


def broken() -> None:
    train(lost)


def mended() -> None:
    train(written)


def broken_by_a_decay_of_1() -> None:
    decay = 1.0

    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in zip(average.parameters(), model.parameters(), strict=True):
            value.mul_(decay).add_(other, alpha=1 - decay)

    train(update)


def broken_by_the_average_itself() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in zip(average.parameters(), average.parameters(), strict=True):
            value.lerp_(other, 1 - DECAY)

    train(update)


def broken_by_an_update_that_is_missing() -> None:
    train(lambda average, model: None, average=AveragedModel)


def broken_by_a_new_dict() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        state, mine = average.state_dict(), model.state_dict()
        for name in state:
            state[name] = state[name] * DECAY + mine[name] * (1 - DECAY)

    train(update)


def broken_in_a_vector() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        slow, fast = (parameters_to_vector(each.parameters()) for each in (average, model))
        slow.lerp_(fast, 1 - DECAY)

    train(update)


def broken_in_a_sum_of_vectors() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        slow, fast = (
            torch.cat([value.flatten() for value in each.parameters()]) for each in (average, model)
        )
        slow = DECAY * slow + (1 - DECAY) * fast

    train(update)


def healthy_vector_that_is_put_back() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        slow, fast = (parameters_to_vector(each.parameters()) for each in (average, model))
        vector_to_parameters(slow.lerp_(fast, 1 - DECAY), average.parameters())

    train(update)


def healthy_vector_that_stays() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        average.lerp_(parameters_to_vector(model.parameters()), 1 - DECAY)

    train(update, average=lambda model: parameters_to_vector(model.parameters()).detach().clone())


def healthy_distance_of_vectors() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        first, now = (parameters_to_vector(each.parameters()) for each in (average, model))
        float((now - first).norm())

    train(update)


def healthy_averages_of_torch() -> None:
    train(lambda average, model: average.update_parameters(model), average=AveragedModel)


def healthy_new_tensors_in_a_dict() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for name, value in model.named_parameters():
            average[name] = DECAY * average[name] + (1 - DECAY) * value.data

    train(update, average=copies)


def healthy_assigned_data() -> None:
    def update(average, model) -> None:
        for value, other in zip(average.parameters(), model.parameters(), strict=True):
            value.data = DECAY * value.data + (1 - DECAY) * other.data

    train(update)


def healthy_loaded_state() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        state, mine = average.state_dict(), model.state_dict()
        average.load_state_dict({k: DECAY * v + (1 - DECAY) * mine[k] for k, v in state.items()})

    train(update)


def healthy_frozen_teacher() -> None:
    train(lambda average, model: None)


def healthy_distance_from_the_start() -> None:
    """The loop prints how far the weights have moved."""

    @torch.no_grad()
    def update(average, model) -> None:
        pairs = zip(model.parameters(), average.parameters(), strict=True)
        float(sum((value - other).norm() for value, other in pairs))

    train(update)


def healthy_pull_towards_the_start() -> None:
    """The weights are pulled towards those of a pretrained model (L2-SP)."""

    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in zip(model.parameters(), average.parameters(), strict=True):
            value.add_(value - other, alpha=-0.01)

    train(update)


def healthy_weights_between_two_models() -> None:
    """Weights between the pretrained ones and the trained ones are evaluated (WiSE-FT)."""
    mixed = net()

    @torch.no_grad()
    def update(average, model) -> None:
        mine = model.state_dict()
        mixed.load_state_dict({k: (v + mine[k]) / 2 for k, v in average.state_dict().items()})
        mixed(torch.randn(4, 6))

    train(update)


def healthy_hard_updates() -> None:
    """A target network gets the weights after every fourth step."""
    count = 0

    def update(average, model) -> None:
        nonlocal count
        count += 1
        if count % 4 == 0:
            average.load_state_dict(model.state_dict())

    train(update)
