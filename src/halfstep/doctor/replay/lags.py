"""What the last step loses with the weights of an evaluated model that follows the trained one.

An average of the weights is evaluated because it is expected to be better than the weights, or
hardly worse. The last step runs again with its weights. A model that is called in most steps
without gradients, such as a teacher, is no average to be evaluated.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tape.modules import unwrapped
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import torch
    from torch import nn

    from halfstep.doctor.replay.replay import Replayer
    from halfstep.doctor.signals.watched import Watched

_MODELS = 2
_OFTEN = 0.25  # of the steps


@dataclass(frozen=True, slots=True)
class Lag:
    """The loss of the last step with the weights of an evaluated model.

    Attributes:
        model: Number of the evaluated model.
        loss: The loss with the trained weights.
        other: The loss with those of the evaluated model.
        site: The last line that evaluated it.
    """

    model: int
    loss: float
    other: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class Lags:
    """All such models.

    Attributes:
        steps: Number of steps of all optimizers.
        found: The models.
    """

    signal: ClassVar[str] = "lags"
    steps: int = 0
    found: tuple[Lag, ...] = ()


@dataclass(slots=True)
class _Evaluated:
    """After how many steps a model was evaluated, and the last line."""

    steps: set[int] = field(default_factory=set)
    mark: Mark | None = None


class LagSignal(Signal):
    """Runs the last step with the weights of other models."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._evaluated: WeakKeyDictionary[nn.Module, _Evaluated] = WeakKeyDictionary()
        self._found: list[Lag] = []

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note a model that is called without gradients in evaluation mode."""
        if not module.training:
            its = self._evaluated.setdefault(module, _Evaluated())
            its.steps.add(self.watched.grammar.made)
            its.mark = mark

    def examine(self, replayer: Replayer) -> None:
        """Run a step with the weights of models that follow its own.

        Args:
            replayer: Runs the step.
        """
        made, registry = self.watched.grammar.made, self.watched.registry
        for model in dict.fromkeys(map(unwrapped, replayer.models)):
            mine = [*model.parameters()]
            for other, its in [*self._evaluated.items()]:
                theirs = [*unwrapped(other).parameters()]
                is_alike = [each.shape for each in theirs] == [each.shape for each in mine]
                if not mine or not is_alike or registry.owners(other):
                    continue
                if len(its.steps) > _OFTEN * made or len(self._found) >= _MODELS:
                    continue
                if any(one is two for one, two in zip(mine, theirs, strict=True)):
                    continue
                leaves = {
                    id(one): two.detach().to(one).clone().requires_grad_(one.requires_grad)
                    for one, two in zip(mine, theirs, strict=True)
                }
                loss, worse = _loss(replayer, {}), _loss(replayer, leaves)
                if loss is not None and worse is not None:
                    number = registry.models.number(other)
                    self._found.append(Lag(number, loss, worse, site(its.mark)))

    def freeze(self) -> dict[str, Any]:
        """Return the losses."""
        return {Lags.signal: Lags(self.watched.grammar.made, tuple(self._found))}


def _loss(replayer: Replayer, leaves: dict[int, torch.Tensor]) -> float | None:
    outcome = replayer.step(leaves)
    if outcome.note or not outcome.losses:
        return None
    return float(outcome.losses[-1].double().sum()) / outcome.scale
