"""Evaluated models whose weights follow the trained ones, and those with a multiple of them.

Where a copy of a trained model is evaluated, its weights are compared with the trained ones. An
average of weights points in their direction, and is as large as they are or have been; a sum with
wrong factors is not. A few elements are compared on the device, and read at the end.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.internals import spectral_vectors
from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.elements import some
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.watched import Watched

ELEMENTS = 256
PARAMETERS = 8
EVALUATIONS = 16
_ALONG = 0.9  # cosine between the weights of a copy and the trained ones
_UNIFORM = 0.1  # of a multiple: its spread over the parameters
_SCALED = 0.2  # its distance from 1
_APART = 1e-4  # of the trained weights
_LENGTH = 0.02  # by which a vector of a spectral norm differs from its length of 1
_OUTSIDE = 0.1  # of the norms that a parameter had: weights between them may be earlier ones


@dataclass(frozen=True, slots=True)
class ScaledModel:
    """A model that is evaluated, and whose weights are a multiple of those of a trained one.

    Attributes:
        number: Number of the model.
        factor: The multiple, as the median of some parameters.
        parameters: Number of these parameters.
        site: The line that evaluates it.
    """

    number: int
    factor: float
    parameters: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class ScaledModels:
    """All such models."""

    signal: ClassVar[str] = "multiples"
    models: tuple[ScaledModel, ...] = ()


class Multiples(Signal):
    """Compares the weights of models that no optimizer trains with those of trained models."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known: set[int] = set()
        self._start: dict[int, torch.Tensor] = {}  # elements by the address of a parameter
        self._trained: set[int] = set()
        self._lengths: list[tuple[int, Mark | None, torch.Tensor]] = []
        self._stale: dict[int, tuple[str, ...]] = {}
        self._lengthened: dict[int, tuple[float, ...]] = {}

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Copy a few elements of some matrices before the first step."""
        del mark
        if number in self._known:
            return
        self._known.add(number)
        parameters = parameters_of(optimizer)
        self._trained.update(map(address, parameters))
        matrices = [each for each in parameters if each.ndim > 1 and address(each)]
        stride = max(1, len(matrices) // PARAMETERS)
        for each in matrices[::stride][:PARAMETERS]:
            if address(each) not in self._start:
                self._start[address(each)] = some(each, ELEMENTS).to(torch.float64, copy=True)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Compare the weights of a model that is evaluated in evaluation mode."""
        if module.training or not self._start or len(self._lengths) >= EVALUATIONS:
            return
        mine = [*module.parameters()]
        if any(address(each) in self._trained for each in mine):
            return
        for other in self.watched.registry.models.alive().values():
            its = [*other.parameters()]
            if other is module or [each.shape for each in its] != [each.shape for each in mine]:
                continue
            lengths = [
                _lengths(self._start[key], a, b)
                for a, b in zip(its, mine, strict=True)
                if (key := address(a)) in self._start
            ]
            if lengths:
                number = self.watched.registry.models.number(module)
                self._lengths.append((number, mark, torch.stack(lengths)))
                stale = [name for name, norm in norms_of(module) if is_new(norm)]
                self._stale[number] = tuple(stale)
                self._lengthened[number] = tuple(_not_of_length_one(module))
                return

    def near(self) -> dict[int, tuple[str, ...]]:
        """Return the models with other weights than at first or now, but near to them, by number.

        Such weights are averages: they follow the trained ones. The values are the names of norm
        layers with the running statistics of their construction, in the last evaluation. Under
        `functional_call`, weights and statistics are only then those of the evaluation.
        """
        return {
            number: self._stale[number]
            for number, _, lengths in self._lengths
            if all(
                product > _ALONG * now * copy > 0 and min(moved, behind) > _APART * now
                for _, now, copy, product, moved, behind in lengths.tolist()
            )
        }

    def vectors(self, number: int) -> tuple[float, ...]:
        """Return the lengths of vectors of spectral norms in the last evaluation, other than 1."""
        return self._lengthened.get(number, ())

    def freeze(self) -> dict[str, Any]:
        """Return the models; reads the comparisons."""
        models = {
            number: ScaledModel(number, factor, len(lengths), site(mark))
            for number, mark, lengths in self._lengths
            if (factor := _factor(lengths.tolist())) is not None
        }
        return {ScaledModels.signal: ScaledModels(tuple(models.values()))}


def norms_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and the layers of a model that have running statistics."""
    for name, each in model.named_modules():
        if isinstance(getattr(each, "running_mean", None), torch.Tensor):
            yield name, each


def is_new(norm: Any) -> bool:
    """Return whether a norm layer has the running statistics of its construction."""
    return not bool(norm.running_mean.any()) and bool((norm.running_var == 1).all())


def _not_of_length_one(model: nn.Module) -> Iterator[float]:
    """Yield the lengths other than 1 of the left vectors of spectral norms, one for each norm."""
    for module in model.modules():
        for vector in spectral_vectors(module):
            length = float(torch.linalg.vector_norm(vector.detach().double()))
            if abs(length - 1) > _LENGTH:
                yield length


def _lengths(start: torch.Tensor, trained: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Compare a parameter of a copy with the trained one.

    Returns:
        The norms of the parameter at first, now and in the copy, the product of the last two, and
        the distances of the copy from the first two.
    """
    now = some(trained, ELEMENTS).double()
    its = some(copy, ELEMENTS).double().to(now.device)
    norms = [each.norm() for each in (start, now, its)]
    return torch.stack([*norms, now @ its, (its - start).norm(), (its - now).norm()])


def _factor(lengths: list[list[float]]) -> float | None:
    """Return the factor by which a copy differs from the trained weights.

    Returns:
        The factor; None unless the parameters point in the same direction, are the same multiple,
        and one of them is larger or smaller than the trained one has been.
    """
    factors, is_outside = [], False
    for start, now, copy, product, _, _ in lengths:
        if not product > _ALONG * now * copy > 0:
            return None
        low, high = (1 - _OUTSIDE) * min(start, now), (1 + _OUTSIDE) * max(start, now)
        is_outside = is_outside or not low <= copy <= high
        factors.append(product / now**2)
    usual = median(factors)
    is_uniform = all(abs(each - usual) <= _UNIFORM * usual for each in factors)
    is_multiple = is_uniform and is_outside and abs(usual - 1) >= _SCALED
    return usual if len(factors) > 1 and is_multiple else None
