"""Codes that are lost in their noise, as those of a variational autoencoder that has collapsed.

A forward adds noise with a learned size to a learned mean. If the means of all samples differ by
far less than the noise, and the predictions see the input only through their sum, then they do not
depend on the input. Of some codes of a model, this may be so; it must not be so of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.answers import Drowned
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, place
from halfstep.doctor.replay.influence.paths import draws, is_only_way
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    import torch

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards

_FEWEST = 8  # samples
_MEAN = 0.3  # of a standard normal distribution, and its standard deviation less 1
_SUMS = frozenset({"add", "add_"})
_COPIES = frozenset({"alias", "clone", "detach", "_to_copy", "view", "expand"})


def drowned(forwards: Forwards) -> Iterator[Drowned]:
    """Yield the sum of means and noise through which alone the predictions see the input."""
    operators = forwards.base
    if not any(map(draws, operators)):  # Many models add noise in training only.
        operators = forwards.in_training()
    inputs = {storage_key(each) for each in forwards.inputs.values()}
    depends = _depending(operators, inputs)
    for operator in operators:
        found = _noise(operators, operator, depends)
        if found is None:
            continue
        mean, size = found
        if len(mean) < _FEWEST or mean.ndim < 2:
            continue
        spread = mean.double().var(0)
        noise = size.double().square().expand(mean.shape).mean(0)
        share = float((spread / noise.clamp(min=1e-30)).max())
        for loss in losses(operators):
            if is_only_way(operators, loss.maker, operator.number, inputs):
                each_of = loss.predictions.numel() // len(mean)
                yield Drowned(share, mean[0].numel(), each_of, loss.operator.name, place(operator))
                return


def _depending(operators: Sequence[Operator], inputs: Container[int]) -> list[bool]:
    """Return which operators compute with inputs."""
    depends: list[bool] = []
    for each in operators:
        depends.append(
            not draws(each)
            and any(
                storage_key(tensor) in inputs or (maker != OUTSIDE and depends[maker])
                for tensor, maker in zip(each.given, each.makers, strict=True)
            )
        )
    return depends


def _noise(
    operators: Sequence[Operator], operator: Operator, depends: Sequence[bool]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the means and the sizes of the noise of a sum; None if it is not such a sum."""
    if operator.name not in _SUMS or len(operator.given) != 2 or OUTSIDE in operator.makers:
        return None
    if not all(operator.needed) or len({each.shape for each in operator.given}) > 1:
        return None
    for at, maker in enumerate(operator.makers):
        product = operators[maker]
        mean = operators[operator.makers[1 - at]]
        if product.name != "mul" or len(product.given) != 2 or not depends[mean.number]:
            continue
        for drawn, needed in enumerate(product.needed):
            number = product.makers[drawn]
            while number != OUTSIDE and operators[number].name in _COPIES:
                number = operators[number].makers[0]
            if needed or not product.needed[1 - drawn]:
                continue
            if draws(operators[number]) if number != OUTSIDE else is_noise(product.given[drawn]):
                return mean.values[0], product.given[1 - drawn].detach()
    return None


def is_noise(tensor: torch.Tensor) -> bool:
    """Return whether a tensor from elsewhere has the statistics of a normal distribution."""
    if (
        tensor.ndim < 2
        or not tensor.is_floating_point()
        or not bool((tensor[0] != tensor[1]).all())
    ):
        return False
    numbers = tensor.detach().double()
    return abs(float(numbers.mean())) < _MEAN and abs(float(numbers.std()) - 1) < _MEAN
