"""Finds what the loss of the last step depends on, once its replay has succeeded."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.replay.influence.bootstraps import bootstraps
from halfstep.doctor.replay.influence.chains import cut_chains
from halfstep.doctor.replay.influence.constants import lost_input
from halfstep.doctor.replay.influence.copied import copied_targets
from halfstep.doctor.replay.influence.derivatives import wrong_derivatives
from halfstep.doctor.replay.influence.drowned import drowned
from halfstep.doctor.replay.influence.edges import no_offsets, wrong_edges
from halfstep.doctor.replay.influence.entropies import smaller_entropies
from halfstep.doctor.replay.influence.forwards import Forwards
from halfstep.doctor.replay.influence.inner_losses import inner_losses
from halfstep.doctor.replay.influence.lost_writes import lost_writes
from halfstep.doctor.replay.influence.noising import weak_noise
from halfstep.doctor.replay.influence.padding import (
    inverted_masks,
    padded,
    padded_features,
    padding_that_counts,
)
from halfstep.doctor.replay.influence.places import by_place
from halfstep.doctor.replay.influence.reach import out_of_reach
from halfstep.doctor.replay.influence.recurrences import detached_states
from halfstep.doctor.replay.influence.reordered import reordered
from halfstep.doctor.replay.influence.samples import mixing
from halfstep.doctor.replay.influence.selections import masked_selections
from halfstep.doctor.replay.influence.sequences import shifts, token_losses
from halfstep.doctor.replay.influence.softmaxes import wrong_softmaxes
from halfstep.doctor.replay.influence.tables import shared_rows
from halfstep.doctor.replay.influence.terms import lost_terms
from halfstep.doctor.replay.influence.turned import turned
from halfstep.doctor.replay.influence.visible import visible_targets
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.signals.data.batches import Batches
from halfstep.doctor.signals.data.indexing import Indexing
from halfstep.doctor.signals.data.padded import PaddedBatches
from halfstep.doctor.signals.data.replaced import Replaced
from halfstep.doctor.signals.program.fetches import Fetches
from halfstep.doctor.signals.program.idle import UnusedSignal
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.values.contracts import DIVERGES, OPERATORS, ContractSignal, torch_call
from halfstep.doctor.signals.values.divergences import DivergenceSignal
from halfstep.doctor.signals.values.own_functions import OwnFunctions
from halfstep.doctor.signals.values.whole_numbers import USES, WholeNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from halfstep.doctor.replay.replay import Replayer
    from halfstep.doctor.signals.values.own_functions import OwnCall
    from halfstep.doctor.signals.watched import Watched

Answer = TypeVar("Answer")
_INCOMPARABLE = (RuntimeError, IndexError, TypeError)


class Influences(Signal):
    """Examines what the loss of the last step depends on."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._found = Influence()

    def examine(self, replayer: Replayer) -> None:
        """Run the forward of a step with other inputs.

        Args:
            replayer: Runs the step.
        """
        try:
            with self.watched[OwnFunctions].kept() as calls:
                forwards = Forwards(replayer)
            self._found = self._examined(forwards, [*calls])
        except RuntimeError as error:  # tensors that torch cannot compare, as on two devices
            self._found = Influence(note=str(error).partition("\n")[0])

    def _examined(self, forwards: Forwards, calls: Sequence[OwnCall]) -> Influence:
        if forwards.note:
            return Influence(note=forwards.note)
        marks = ((each.caller.user_line, each.name) for each in forwards.base)
        self.watched[UnusedSignal].ran(marks)
        for examine in (self._examine_calls, self._examine_whole_numbers):
            with suppress(*_INCOMPARABLE):
                examine(forwards)
        tokens = token_losses(forwards)
        fetches = self.watched[Fetches]
        sequences = [each.tokens for each in tokens if each.axis == 1 and each.shift]
        sequences += [
            each
            for each in forwards.inputs.values()
            if each.ndim > 1 and fetches.has_samples_first(each)
        ]
        inputs = padded(forwards, self.watched[PaddedBatches].latest())
        return Influence(
            mixing=mixing(forwards, sequences),
            shifts=tuple(shifts(forwards, tokens)),
            softmaxes=tuple(wrong_softmaxes(forwards)),
            terms=tuple(lost_terms(forwards)),
            padding=padding_that_counts(forwards, inputs),
            masks=tuple(inverted_masks(forwards, [*inputs, *padded_features(forwards)])),
            bootstraps=tuple(bootstraps(forwards, self._trained())),
            lost=lost_input(forwards),
            reaches=tuple(out_of_reach(forwards)),
            chains=_answered(lambda one: cut_chains(one, calls), forwards),
            derivatives=tuple(wrong_derivatives(calls)),
            writes=_answered(lost_writes, forwards),
            inner=_answered(inner_losses, forwards),
            selections=_answered(masked_selections, forwards),
            states=tuple(detached_states(forwards)),
            reordered=_answered(lambda one: reordered(one, self._correspond), forwards),
            places=tuple(by_place(forwards, sequences)),
            visible=tuple(visible_targets(forwards, self.watched[Replaced].over)),
            turned=_answered(turned, forwards),
            offsets=_answered(no_offsets, forwards),
            drowned=tuple(drowned(forwards)),
            edges=_answered(wrong_edges, forwards),
            entropies=() if self._maximizes() else _answered(smaller_entropies, forwards),
            tables=_answered(shared_rows, forwards),
            noise=_answered(weak_noise, forwards),
            copied=_answered(copied_targets, forwards),
        )

    def _examine_calls(self, forwards: Forwards) -> None:
        """Examine the values of functions that modules call; the loop's own calls were heard."""
        contracts, divergences = self.watched[ContractSignal], self.watched[DivergenceSignal]
        for name, arguments, mark, enabled in forwards.calls:
            if name == DIVERGES:
                inputs, targets, log_target = map(arguments.get, ("input", "target", "log_target"))
                divergences.take(name, inputs, targets, mark, log_target=bool(log_target))
                continue
            contracts.take(name, arguments, mark, enabled)
        for each in forwards.base:
            if each.name in OPERATORS and each.caller.module_kind:
                name = OPERATORS[each.name]
                contracts.take(name, torch_call(name, each.args, {}), each.caller.user_line)

    def _examine_whole_numbers(self, forwards: Forwards) -> None:
        """Examine the whole numbers that modules make fp32, and those of the data."""
        numbers = self.watched[WholeNumbers]
        for each in forwards.base:
            if not (each.caller.module_kind and each.made and each.given):
                continue
            if each.name == "_to_copy":
                numbers.cast(each.given[0], each.made[0], each.caller.user_line)
            elif each.name in USES:
                numbers.used(each.name, each.args, each.values[0], each.caller.user_line)
        for each in forwards.base:
            if each.name in {"sub", "rsub"} and len(each.given) == 2 and not any(each.needed):
                numbers.in_steps(each.name, each.given, each.values[0], each.caller.user_line)

    def _correspond(self, inputs: torch.Tensor, targets: torch.Tensor) -> bool:
        """Return whether inputs and targets are known to have their samples in the same order."""
        batches, rows = self.watched[Batches], self.watched[Indexing]
        batch = batches.batch_of(inputs)
        is_of_batch = batch is not None and batch == batches.batch_of(targets)
        return is_of_batch or rows.are_of_one_order(inputs, targets)

    def _maximizes(self) -> bool:
        """Return whether an optimizer makes its loss larger."""
        optimizers = self.watched.registry.optimizers.alive().values()
        return any(group.get("maximize") for each in optimizers for group in each.param_groups)

    def _trained(self) -> set[int]:
        """Return the keys of the storages of the parameters that optimizers update."""
        registry = self.watched.registry
        optimizers = registry.optimizers.alive().values()
        moved = [each for one in optimizers for each in registry.moved_by(one)]
        return {storage_key(each) for each in (*moved, *registry.loose)}

    def freeze(self) -> dict[str, Any]:
        """Return what the loss depends on."""
        return {Influence.signal: self._found}


def _answered(
    question: Callable[[Forwards], Iterator[Answer]], forwards: Forwards
) -> tuple[Answer, ...]:
    """Return the answers to a question; none if torch cannot compare tensors of unusual kinds."""
    try:
        return tuple(question(forwards))
    except _INCOMPARABLE:
        return ()
