"""Steps that the loop makes itself, in a program without an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.summary import is_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class OwnSteps(Signal):
    """Takes a write to parameters after a backward pass as the step that ends an iteration."""

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note the first write to parameters since a backward pass, and examine a bad step."""
        del name, values
        watched = self.watched
        if watched.registry.optimizers.notes or not watched.grammar.has_gradients:
            return
        models = watched.registry.models.alive().values()
        trained: list[torch.Tensor] = [each for model in models for each in model.parameters()]
        trained += [each for each in written if each.requires_grad and each.is_leaf]
        given = {address(each) for each in written} - {0}
        if not any(address(each) in given for each in trained):
            return
        watched.grammar.stepped_by_hand()
        loss = watched[Measuring].loss
        # Reading a loss on an accelerator would wait.
        if loss is not None and loss.device.type == "cpu" and not is_finite(loss):
            watched[Investigation].step(
                watched.tape.snapshot(),
                watched.registry.names(),
                watched.grammar.iteration,
                "the loss is not finite",
                scale=None,
                moved=trained,
            )
