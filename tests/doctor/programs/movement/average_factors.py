"""The factors of an exponential average are swapped, so it equals the latest weights."""

import copy

import torch

from doctor.programs.movement.average_never_moves import copies, train

CODE = "AVERAGE_FACTORS"
DECAY = 0.99


def pairs(average, model):
    return zip(average.parameters(), model.parameters(), strict=True)


def run(kept: float, added: float) -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in pairs(average, model):
            value.mul_(kept).add_(other, alpha=added)

    train(update)


def broken() -> None:
    run(1 - DECAY, DECAY)


def mended() -> None:
    run(DECAY, 1 - DECAY)


def broken_in_lerp() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in pairs(average, model):
            value.lerp_(other, 0.999)

    train(update)


def broken_in_a_dict() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for name, value in model.named_parameters():
            average[name] = (1 - DECAY) * average[name] + DECAY * value

    train(update, average=copies)


def broken_in_a_target_network() -> None:
    """After every third step, with both factors of a soft update in each other's place."""
    count, tau = 0, 0.005

    @torch.no_grad()
    def update(average, model) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0:
            for value, other in pairs(average, model):
                value.copy_(tau * value + (1 - tau) * other)

    train(update, steps=24)


def broken_by_a_sum_above_1() -> None:
    run(DECAY, DECAY)


def broken_by_a_sum_below_1() -> None:
    run(0.9, 0.01)


def sums(weight: float, *, steps: int = 24) -> None:
    """Add the weights of every third step of the second half to a sum, and evaluate it."""
    count = 0

    def zeros(model):
        average = copy.deepcopy(model)
        for value in average.parameters():
            value.data.zero_()
        return average

    @torch.no_grad()
    def update(average, model) -> None:
        nonlocal count
        count += 1
        if count > steps // 2 and count % 3 == 0:
            for value, other in pairs(average, model):
                value.add_(other, alpha=weight)

    train(update, average=zeros, steps=steps)


def broken_by_a_number_of_snapshots_that_are_not_taken() -> None:
    sums(3 / 24)


def broken_in_an_exported_dict() -> None:
    """The state of a new model is computed from the weights at the end."""

    def update(average, model) -> None:
        last = {name: 0.7 * value for name, value in model.state_dict().items()}
        average.load_state_dict(last)

    train(update, steps=24)


def healthy_sum_of_snapshots() -> None:
    sums(3 / 12)


def healthy_average_far_behind() -> None:
    run(0.98, 0.02)


def healthy_decay_that_begins_small() -> None:
    count = 0

    @torch.no_grad()
    def update(average, model) -> None:
        nonlocal count
        count += 1
        decay = min(0.999, (1 + count) / (10 + count))
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)

    train(update)


def healthy_copy_after_each_step() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in pairs(average, model):
            value.copy_(other)

    train(update)


def healthy_soft_updates_with_a_rate_of_1() -> None:
    """A target network of reinforcement learning, with tau = 1 after every third step."""
    count, tau = 0, 1.0

    @torch.no_grad()
    def update(average, model) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0:
            for value, other in pairs(average, model):
                value.copy_(tau * other + (1 - tau) * value)

    train(update)


def healthy_fast_average() -> None:
    run(0.5, 0.5)


def healthy_sum_of_all_weights() -> None:
    """A sum that is divided by the number of its terms at the end."""
    terms, steps = 1, 12

    @torch.no_grad()
    def update(average, model) -> None:
        nonlocal terms
        terms += 1
        for value, other in pairs(average, model):
            value.add_(other)
            if terms > steps:
                value.div_(terms)

    train(update, steps=steps)


def healthy_slow_weights() -> None:
    """Lookahead: every fourth step, the weights are set to slow ones."""
    count = 0

    @torch.no_grad()
    def update(average, model) -> None:
        nonlocal count
        count += 1
        if count % 4 == 0:
            for slow, fast in pairs(average, model):
                slow.add_(fast - slow, alpha=0.5)
                fast.copy_(slow)

    train(update)


def healthy_halved_gradients() -> None:
    @torch.no_grad()
    def update(average, model) -> None:
        for value, other in pairs(average, model):
            value.lerp_(other, 0.1)
            other.grad.mul_(0.5)

    train(update)
