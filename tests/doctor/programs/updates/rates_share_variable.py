"""The functions for the groups of LambdaLR come from one loop, and read its variable later."""

# ruff: noqa: B023  # the cause itself

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, MultiplicativeLR

from doctor.loops import batches, classifier

CODE = "RATES_SHARE_VARIABLE"
FACTORS = (0.1, 1.0)


def shape(step: int) -> float:
    return 1 - step / 40


def train(functions, kind=LambdaLR) -> None:
    model = classifier()
    is_short = callable(functions) or len(functions) < 3
    first = [model[:3]] if is_short else [model[0], model[1]]
    groups = [{"params": each.parameters()} for each in (*first, model[3])]
    optimizer = torch.optim.SGD(groups, lr=0.02)
    scheduler = kind(optimizer, functions)
    for images, labels in batches(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        scheduler.step()


def broken() -> None:
    functions = [lambda step: factor * shape(step) for factor in FACTORS]
    train(functions)


def mended() -> None:
    functions = [lambda step, factor=factor: factor * shape(step) for factor in FACTORS]
    train(functions)


def broken_in_an_argument() -> None:
    train([lambda step: FACTORS[number] * shape(step) for number in (0, 1)])


def broken_beside_the_function_of_another_group() -> None:
    train([shape, *(lambda step: factor * shape(step) for factor in FACTORS)])


def broken_in_a_loop_with_a_condition() -> None:
    functions = []
    for number, factor in enumerate(FACTORS):
        functions.append(lambda step: shape(step) if number else factor * shape(step))
    train(functions)


def broken_by_a_function_with_a_name() -> None:
    functions = []
    for factor in FACTORS:

        def rate(step):
            return factor * shape(step)

        functions.append(rate)
    train(functions)


def broken_by_factors_that_multiply() -> None:
    functions = [lambda step: 1 - factor / 40 for factor in FACTORS]
    train(functions, MultiplicativeLR)


def healthy_functions_of_a_function() -> None:
    def of(factor):
        return lambda step: factor * shape(step)

    train([of(factor) for factor in FACTORS])


def healthy_same_rate_for_each_group() -> None:
    train([lambda step: shape(step) for _ in FACTORS])  # noqa: PLW0108  # two functions


def healthy_one_function() -> None:
    train(shape)


def healthy_functions_of_their_own() -> None:
    train([lambda step: 0.1 * shape(step), lambda step: shape(step) / 2])
