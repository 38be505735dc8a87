"""Whether the step of a generator opposes that of the network that scores its samples.

A discriminator gives one number for each sample. Its own step moves the numbers of the data one
way, and those of the generator's samples another way. The step of the generator must move the
numbers of its samples back. In some steps, a few of these numbers and their gradients are kept;
they are read at the end of the program. They tell where a loss moves the numbers: up, down, or, for
squared errors and cross entropies, to a label. Whose samples they are is followed by their memory,
so it does not matter whether they are detached. A generator whose loss opposes the network, but
only ever gives it samples without their graph, gets nothing from it.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from halfstep.doctor.internals import is_functorch_tensor, is_loss
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard

FIRST, EVERY, LENGTH = 64, 256, 16
"""The first steps, and the steps of each window after them, in which gradients are kept."""
_KEPT = 16  # calls in one role
_ELEMENTS = 64  # of a call
_MADE = 32  # results of models whose memory is known
_DATA = -1
_JOINS = frozenset({"cat", "concat", "concatenate"})
_EXACT = 1e-3  # of the gradients: what a straight line may leave
_NEAR = 0.05


@dataclass(frozen=True, slots=True)
class Agreement:
    """A network whose numbers a generator moves the same way as the network itself does.

    Attributes:
        scores: Number of the model that gives the numbers.
        makes: Number of the model that makes the samples.
        rises: Whether both raise the numbers of these samples.
        steps: Number of the generator's steps in which they were looked at.
        site: The line of the generator's step that calls the network.
        other: The line of the network's own step that calls it for such samples.
    """

    scores: int
    makes: int
    rises: bool
    steps: int
    site: Site | None
    other: Site | None


@dataclass(frozen=True, slots=True)
class CutScore:
    """A network that opposes a generator, whose samples it only gets without their graph.

    Attributes:
        steps: Number of the generator's steps in which it was looked at.
        site: The line of the generator's step that calls the network.
    """

    steps: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Agreements:
    """All such networks: those that agree with a generator, and those that are cut off from one.

    `one_way` has the numbers of the optimizers of a network and of a model whose samples it scores,
    if the scores of these samples are only moved one way, and those of others not the other way.
    """

    signal: ClassVar[str] = "adversaries"
    found: tuple[Agreement, ...] = ()
    cut: tuple[CutScore, ...] = ()
    one_way: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class _Score:
    """A call of a network.

    Attributes:
        model: Number of the network.
        maker: Number of the model that made its input; `_DATA` for none.
        mark: The line.
        is_cut: Whether its inputs require no gradients.
        values: Some of its results, and their gradients.
    """

    model: int
    maker: int
    mark: Mark | None
    is_cut: bool
    values: torch.Tensor | None = None


class AdversarySignal(Signal):
    """Keeps gradients at the numbers that networks give for samples."""

    def __init__(self, watched: Any) -> None:
        super().__init__(watched)
        self._stepped: set[int] = set()
        self._steps = 0
        self._looks = False
        self._made: deque[tuple[StorageWeakRef, int]] = deque(maxlen=_MADE)
        self._joined: deque[tuple[StorageWeakRef, list[tuple[int, int]]]] = deque(maxlen=_KEPT)
        self._pending: list[_Score] = []
        self._kept: dict[tuple[int, int, int], list[_Score]] = {}

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note who made the input of a network, and what it gives."""
        if not self._looks or is_loss(module) or not all(map(_is_plain, made)):
            return
        number = self.watched.registry.models.number(module)
        is_score = len(made) == 1 and bool(given) and _is_score(made[0], given[0])
        if is_score and len(self._pending) < _KEPT:
            self._note(number, given, made[0])
        for each in made:
            self._made.append((StorageWeakRef(each.untyped_storage()), number))

    def _note(self, number: int, given: Sequence[torch.Tensor], made: torch.Tensor) -> None:
        maker = next((one for each in given if (one := self._maker(each)) != _DATA), _DATA)
        mark = calling_line()
        is_cut = not any(each.requires_grad for each in given)
        parts = [
            (_Score(number, its, mark, is_cut), rows)
            for its, rows in self._parts(given[0]) or [(maker, len(made))]
        ]
        self._pending += [each for each, _ in parts]
        result = made.detach()

        def note(gradient: torch.Tensor) -> None:
            if torch.is_grad_enabled():  # the gradient of a penalty, not that of the loss
                return
            start = 0
            for score, rows in parts:
                both = [each[start : start + rows].flatten() for each in (result, gradient)]
                stride = max(1, len(both[0]) // _ELEMENTS)
                score.values = torch.stack([each[::stride].float() for each in both])
                start += rows

        made.register_hook(note)

    def _parts(self, tensor: torch.Tensor) -> list[tuple[int, int]]:
        """Return the makers of the samples of a joined batch, and their numbers."""
        mine = _memory(tensor)
        found = next((its for each, its in reversed(self._joined) if each.cdata == mine), [])
        return found if sum(rows for _, rows in found) == len(tensor) else []

    def on_call(self, heard: Heard) -> None:
        """Follow the samples of a model through the loop's own calls."""
        if not self._looks or not self._made or not _is_plain(heard.result):
            return
        makers = [self._maker(each) for each in heard.given]
        found = next((each for each in makers if each != _DATA), None)
        if found is None or not heard.result.ndim:
            return
        place = StorageWeakRef(heard.result.untyped_storage())
        self._made.append((place, found))
        if heard.name in _JOINS and len({*makers}) > 1:
            rows = [len(each) if each.ndim else 0 for each in heard.given]
            self._joined.append((place, [*zip(makers, rows, strict=True)]))

    def _maker(self, tensor: torch.Tensor) -> int:
        if not self._made or not _is_plain(tensor):
            return _DATA
        mine = _memory(tensor)
        return next((number for each, number in reversed(self._made) if each.cdata == mine), _DATA)

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Keep what the networks gave in the step, and decide whether to look at the next one."""
        del optimizer, mark
        for each in self._pending:
            if each.values is not None:
                its = self._kept.setdefault((number, each.model, each.maker), [])
                if len(its) < _KEPT:
                    its.append(each)
        self._pending = []
        self._stepped.add(number)
        self._steps += 1
        self._looks = len(self._stepped) > 1 and (
            self._steps <= FIRST or self._steps % EVERY < LENGTH
        )
        if not self._looks:
            self._made.clear()
            self._joined.clear()

    def freeze(self) -> dict[str, Any]:
        """Return what generators get from the networks; reads the gradients."""
        registry = self.watched.registry
        models = registry.models.alive()
        owners = {number: {*registry.owners(each)} for number, each in models.items()}
        found, cut = [], []
        for (step, model, maker), its in self._kept.items():
            of_generator = owners.get(maker, set())
            if maker in {_DATA, model} or step not in of_generator - owners.get(model, set()):
                continue
            own = [key for key in self._kept if key[1] == model]
            own = [key for key in own if key[0] in owners[model] - of_generator]
            samples = [each for key in own if key[2] == maker for each in self._kept[key]]
            data = [each for key in own if key[2] != maker for each in self._kept[key]]
            agree, rises = _agreement(its, samples, data)
            if agree:
                lines = site(its[-1].mark), site(samples[-1].mark)
                found.append(Agreement(model, maker, rises, len(its), *lines))
            elif all(each.is_cut for each in its) and _agreement(its, data, samples)[0]:
                cut.append(CutScore(len(its), site(its[-1].mark)))
        one_way = tuple(self._one_way(owners))
        return {Agreements.signal: Agreements(tuple(found), tuple(cut), one_way)}

    def _one_way(self, owners: dict[int, set[int]]) -> Iterator[tuple[int, int]]:
        for model, maker in {key[1:] for key in self._kept} - {(each, each) for each in owners}:
            mine = [
                (key[2], one) for key, its in self._kept.items() if key[1] == model for one in its
            ]
            moved = [one for its, one in mine if its == maker != _DATA and not one.is_cut]
            sign = _sign(moved)
            if (
                sign
                and all(map(_is_by_value, moved))
                and _sign([one for _, one in mine if one not in moved]) != -sign
            ):
                both = product(owners.get(model, ()), owners.get(maker, ()))
                yield from (pair for pair in both if pair[0] != pair[1])


def _agreement(
    generator: Sequence[_Score], alike: Sequence[_Score], other: Sequence[_Score]
) -> tuple[bool, bool]:
    """Return whether a generator moves its samples as a network does some, and others another way.

    Args:
        generator: The calls in the steps of the generator.
        alike: The calls for some inputs in the steps of the network.
        other: The calls for the others in these steps.

    Returns:
        Whether they do, and whether both raise these numbers.
    """
    for probabilities in (False, True):
        labels = [_label(each, probabilities) for each in (generator, alike, other)]
        if not any(map(math.isnan, labels)):
            near = _NEAR * abs(labels[2] - labels[1])
            return abs(labels[0] - labels[1]) < near, labels[0] > labels[2]
    signs = [_sign(each) for each in (generator, alike, other)]
    # A positive gradient lowers the numbers.
    return signs[0] != 0 and signs[0] == signs[1] == -signs[2], signs[0] < 0


def _sign(scores: Sequence[_Score]) -> int:
    """Return the sign that all gradients have; 0 if they have several, or none."""
    values = [each.values for each in scores if each.values is not None]
    signs = {int(one) for _, gradients in values for one in gradients.sign().tolist()} - {0}
    return signs.pop() if len(signs) == 1 else 0


def _is_by_value(score: _Score) -> bool:
    """Return whether gradients only depend on the numbers, as without targets of samples.

    The more a convex loss moves a number up, the smaller the number is. Numbers that another
    network of an ensemble falls below have no gradient.
    """
    if score.values is None:
        return True
    numbers, gradients = score.values
    order = numbers[gradients != 0].argsort()
    rises = gradients[gradients != 0][order].diff()
    return bool((rises >= -_EXACT * gradients.abs().max()).all())


def _label(scores: Sequence[_Score], probabilities: bool) -> float:
    """Return the label to which losses move numbers; NaN if the losses are others.

    Args:
        scores: The numbers and their gradients.
        probabilities: Whether a cross entropy moves the sigmoid of the numbers to the label, in
            place of a squared error that moves the numbers.
    """
    labels = [_zero(each.values, probabilities) for each in scores if each.values is not None]
    if not labels or not max(labels) - min(labels) <= _NEAR * (1 + abs(labels[0])):
        return math.nan
    return median(labels)


def _zero(values: torch.Tensor, probabilities: bool) -> float:
    """Return where gradients are zero that lie on a rising line; NaN if they do not."""
    numbers, gradients = values.double()
    numbers = numbers.sigmoid() if probabilities else numbers
    numbers_apart, gradients_apart = numbers - numbers.mean(), gradients - gradients.mean()
    size = float(numbers_apart.square().sum())
    slope = float((numbers_apart * gradients_apart).sum()) / size if size else 0.0
    left = float((gradients_apart - slope * numbers_apart).abs().max())
    if not slope > 0 or left > _EXACT * float(gradients_apart.abs().max()):
        return math.nan
    return float(numbers.mean() - gradients.mean() / slope)


def _is_plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested or is_functorch_tensor(tensor))
    )


def _memory(tensor: torch.Tensor) -> int:
    """Return what identifies the memory of a tensor as long as it is alive."""
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)


def _is_score(made: torch.Tensor, given: torch.Tensor) -> bool:
    """Return whether a result is one number for each sample, or for each patch of an image."""
    if not made.requires_grad or not made.is_floating_point() or not made.ndim or not given.ndim:
        return False
    is_number = made.numel() == len(made) > 1
    is_map = made.ndim == 4 and made.shape[1] == 1
    return (is_number or is_map) and len(made) == len(given)
