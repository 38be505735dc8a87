"""Finds what the loss of the last step depends on, once its replay has succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.replay.influence.bootstraps import bootstraps
from halfstep.doctor.replay.influence.constants import lost_input
from halfstep.doctor.replay.influence.forwards import Forwards
from halfstep.doctor.replay.influence.padding import inverted_masks, padded, padding_that_counts
from halfstep.doctor.replay.influence.reach import out_of_reach
from halfstep.doctor.replay.influence.recurrences import detached_states
from halfstep.doctor.replay.influence.samples import mixing
from halfstep.doctor.replay.influence.sequences import shifts, token_losses
from halfstep.doctor.replay.influence.softmaxes import wrong_softmaxes
from halfstep.doctor.replay.influence.terms import lost_terms
from halfstep.doctor.replay.influence.visible import visible_targets
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.signals.data.replaced import Replaced
from halfstep.doctor.signals.program.fetches import Fetches
from halfstep.doctor.signals.signal import Signal

if TYPE_CHECKING:
    from halfstep.doctor.replay.replay import Replayer
    from halfstep.doctor.signals.watched import Watched


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
            self._found = self._examined(Forwards(replayer))
        except RuntimeError as error:  # tensors that torch cannot compare, as on two devices
            self._found = Influence(note=str(error).partition("\n")[0])

    def _examined(self, forwards: Forwards) -> Influence:
        if forwards.note:
            return Influence(note=forwards.note)
        tokens = token_losses(forwards)
        fetches = self.watched[Fetches]
        sequences = [each.tokens for each in tokens if each.axis == 1 and each.shift]
        sequences += [
            each
            for each in forwards.inputs.values()
            if each.ndim > 1 and fetches.has_samples_first(each)
        ]
        inputs = padded(forwards)
        return Influence(
            mixing=mixing(forwards, sequences),
            shifts=tuple(shifts(forwards, tokens)),
            softmaxes=tuple(wrong_softmaxes(forwards)),
            terms=tuple(lost_terms(forwards)),
            padding=padding_that_counts(forwards, inputs),
            masks=tuple(inverted_masks(forwards, inputs)),
            bootstraps=tuple(bootstraps(forwards, self._trained())),
            lost=lost_input(forwards),
            reaches=tuple(out_of_reach(forwards)),
            states=tuple(detached_states(forwards)),
            visible=tuple(visible_targets(forwards, self.watched[Replaced].over)),
        )

    def _trained(self) -> set[int]:
        """Return the keys of the storages of the parameters that optimizers update."""
        registry = self.watched.registry
        optimizers = registry.optimizers.alive().values()
        return {storage_key(each) for one in optimizers for each in registry.moved_by(one)}

    def freeze(self) -> dict[str, Any]:
        """Return what the loss depends on."""
        return {Influence.signal: self._found}
