"""Keeps micro-batches that the trainer has reported, and puts them on the tape if needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.tape.tape import Copies, Entry, Multiplier, RandomState
    from halfstep.doctor.watching.receiver import Receiver


@dataclass(slots=True)
class MicroBatch:
    """A micro-batch that the trainer has reported.

    Attributes:
        model: The model.
        criterion: The loss function, called on logits and labels.
        given: Images and labels.
        versions: Versions of images and labels.
        random: State of the random generators before the micro-batch; None if no micro-batch has
            used them so far.
        autocast: The attribute `autocast` of the tape's `Entry`.
        buffers: The attribute `buffers` of the tape's `Entry`.
        loss: The computed loss; None before its computation.
        weighed: The weighting of the loss for its window: a function, and its arguments after the
            loss. None without weighting.
        scaler: The scaler that multiplies the weighted loss; None without one.
        scale: The loss scale: a scalar tensor that is never written to.
    """

    model: nn.Module
    criterion: Callable[..., Any]
    given: tuple[torch.Tensor, torch.Tensor]
    versions: tuple[int, int]
    random: RandomState | None
    autocast: tuple[tuple[str, torch.dtype], ...]
    buffers: Copies | None
    loss: torch.Tensor | None = None
    weighed: tuple[Any, tuple[Any, ...]] | None = None
    scaler: Any = None
    scale: torch.Tensor | None = None

    def weighted(self) -> torch.Tensor:
        """Return the loss, weighted for its window, without its loss scale."""
        assert self.loss is not None
        if self.weighed is None:
            return self.loss
        function, rest = self.weighed
        weighted: torch.Tensor = function(self.loss, *rest)
        return weighted

    def root(self) -> torch.Tensor:
        """Return the weighted and scaled loss, from which a backward can start.

        The engine itself may start from the unweighted, unscaled loss, with weight times scale as
        the initial gradient.
        """
        loss = self.weighted()
        if self.scale is None:
            return loss
        return (loss.float() if loss.dtype in HALVES else loss) * self.scale


class MicroBatches:
    """Reports micro-batches to the full watch, as if the full watch had recorded them itself.

    Args:
        receiver: Receives the events of the full watch.
        usual: The events of usual iterations, by number of micro-batches.
    """

    def __init__(self, receiver: Receiver, usual: dict[int, Any]) -> None:
        self._receiver = receiver
        self._usual = usual
        # The source lines of the loop, by kind of event.
        self._marks: dict[str, Mark | None] = {
            kind: mark for shape in usual.values() for kind, mark, _ in shape
        }

    def put_on_tape(self, window: Sequence[MicroBatch], *, heard: bool) -> None:
        """Put micro-batches on the tape, with placeholders for their intermediate tensors.

        A replay computes the intermediate tensors again.

        Args:
            window: The micro-batches of a window.
            heard: Whether to record the events of the micro-batches in the grammar, too.
        """
        receiver = self._receiver
        for gradients in receiver.grammar.followed:
            gradients.forget(unseen=True)
        if window:
            receiver.begin()
        for number, told in enumerate(window):
            logits, loss = torch.empty(0), torch.empty(())
            images, labels = told.given
            notes = receiver.registry.model(told.model)
            entry = self._call(told, told.model, (images,), logits)
            entry.random, entry.buffers = told.random, told.buffers
            entry.modules = notes.modules_of(told.model)
            entry.training = tuple([each.training for each in entry.modules])
            self._call(told, told.criterion, (logits, labels), loss)
            if told.weighed is not None:
                function, rest = told.weighed
                weighed = torch.empty(())
                self._call(told, function, (loss, *rest), weighed)
                loss = weighed
            multiplier = None
            if told.scaler is not None:
                loss, multiplier = self._scale(told, loss)
            backward = receiver.tape.open("backward", None, (loss,), {"grad_tensors": None})
            backward.mark = self._marks.get("backward")
            if told.loss is not None:
                backward.value, receiver.measuring.loss = told.root(), told.weighted()
            receiver.tape.close(backward, None, None)
            if heard:
                self._tell(told, multiplier, again=number > 0)

    def tell_of_engine(self, micro_batches: int) -> None:
        """Record the engine's usual events between backward and step, such as clipping."""
        kinds = [kind for kind, _, _ in self._usual.get(micro_batches, ())]
        if "backward" in kinds:
            first = len(kinds) - kinds[::-1].index("backward")
            for kind, mark, facts in self._usual[micro_batches][first:]:
                if kind in {"step", "scaler step"}:
                    return
                self._receiver.grammar.add(kind, mark, **dict(facts))

    def _call(
        self, told: MicroBatch, function: Any, args: tuple[torch.Tensor, ...], result: torch.Tensor
    ) -> Entry:
        tape, versions = (
            self._receiver.tape,
            dict(zip(map(id, told.given), told.versions, strict=True)),
        )
        kind = "module" if isinstance(function, nn.Module) else "call"
        entry = tape.open(kind, function, args, {})
        entry.given = [(each, versions.get(id(each), now)) for each, now in entry.given]
        entry.mark, entry.autocast = self._marks.get("forward"), told.autocast
        tape.close(entry, result, None)
        return entry

    def _scale(self, told: MicroBatch, loss: torch.Tensor) -> tuple[torch.Tensor, Multiplier]:
        scaled, tape = torch.empty(()), self._receiver.tape
        multiplier = self._receiver.scaling.multiplier(told.scaler)
        entry = tape.open("scale", None, (loss,), {})
        entry.mark, entry.value = self._marks.get("scale"), told.scale
        tape.close(entry, scaled, multiplier)
        return scaled, multiplier

    def _tell(self, told: MicroBatch, multiplier: Multiplier | None, *, again: bool) -> None:
        grammar, marks = self._receiver.grammar, self._marks
        loss_format = format_name(told.root().dtype)
        formats = ",".join(format_name(dtype) for _, dtype in told.autocast)
        registry = self._receiver.registry
        grammar.add(
            "forward",
            marks.get("forward"),
            model=registry.models.number(told.model),
            autocast=formats,
            differentiable=any(each.requires_grad for each in told.given),
            mode=registry.model(told.model).modes.note_training(),
        )
        if multiplier is not None:
            scaler = multiplier.scaler
            grammar.add(
                "scale", marks.get("scale"), scaler=scaler, format=loss_format, already=False
            )
        if again:
            for gradients in grammar.followed:
                gradients.expect_more()
        grammar.accumulated(
            marks.get("backward"), multiplier, autocast=False, loss_format=loss_format
        )
