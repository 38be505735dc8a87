"""Forward and backward of a micro-batch, in pieces if the whole does not fit in memory.

Each piece has its own loss, weighted by the piece's share of the images, so that the window
accumulates the gradient of the whole batch. If memory runs out, the whole window so far is rerun
in smaller pieces, because the interrupted backward left incomplete gradients, which are dropped.

With several processes, each has a part of the batch. Losses are weighted so that the mean over the
processes is the mean over the images. If one process must split its part, all processes do.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from halfstep import step_observer
from halfstep.errors import UserError, reason
from halfstep.formats.dtypes import HALVES
from halfstep.kernels import accelerators
from halfstep.train.build.compiling import as_compiled
from halfstep.train.processes.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from halfstep.engine import Engine, StepResult
    from halfstep.engine.graphs.captured import CapturedStep
    from halfstep.train.config.run import RunConfig
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.progress import Progress
    from halfstep.train.task.in_step import Portion
    from halfstep.train.task.task import Task

LossAndLogits = tuple[torch.Tensor, Any]
"""The mean loss of a micro-batch, a scalar, and its logits (N, classes) or other outputs."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a micro-batch that this process has.

    Attributes:
        images: Shape (size, channels, height, width), on the device.
        labels: int64, shape (size,), or fp32 probabilities, shape (size, classes).
        size: Number of images.
        counts: Whether the images count; False for a dummy batch.
        total: Number of images of the micro-batch that count, over all processes.
    """

    images: torch.Tensor
    labels: torch.Tensor
    size: int
    counts: bool
    total: int


class MicrobatchWarning(UserWarning):
    """A batch is split into pieces, because it does not fit in memory."""


@dataclass
class MicroBatches:
    """Runs the forward and backward passes of micro-batches through an engine."""

    engine: Engine
    config: RunConfig
    progress: Progress
    task: Task
    processes: Processes = ALONE
    compiled_for: int | None = None
    captured: bool = False

    def __post_init__(self) -> None:
        self._captured = self._capture() if self.captured else None
        self._taken: StepResult | None = None
        self._shared: tuple[bool, int] | None = None
        # A step of one batch needs no weights; weighting would only add rounding errors.
        self._weighted = self.engine.accumulate > 1
        self._window: list[_Part] = []
        self._can_be_whole = self.processes.size == 1 and not self.config.auto_microbatch
        self._wrapped = self.engine.model

    def expect(self, portion: Portion) -> None:
        """Set which portion of a batch the next micro-batch is; by default it is a whole batch."""
        self._shared = portion.counted > 0, portion.total

    def add(self, images: Any, labels: Any) -> LossAndLogits:
        """Add the gradients of a micro-batch to the accumulation window.

        Args:
            images: Normalised, shape (N, channels, height, width), on the device. Or other inputs.
            labels: int64, shape (N,), or fp32 probabilities, shape (N, classes), if labels are
                mixed. Or other targets.

        Returns:
            The mean loss, a scalar, and the logits, shape (N, classes), both detached.

        Raises:
            UserError: If there is not enough memory for a single image.
            RuntimeError: Torch's error, if memory does not suffice and the config does not set
                `auto_microbatch`.
        """
        if self._captured is not None:
            samples = self.task.size(labels) if self._weighted else None
            self._taken = self._captured(images, labels, samples=samples)
            loss, logits = self._captured.returned
            return _in_fp32(loss), logits
        if self._can_be_whole and self.progress.pieces == 1:
            return self._whole(images, labels)
        part = self._part(images, labels)
        window = [*self._window, part] if self.config.auto_microbatch else []
        done = self._attempt([part], part.total if self._weighted else None)
        while done is None:
            self._split(len(labels))
            together = sum(batch.total for batch in window)
            done = self._attempt(window, together if self._weighted else None)
        self._window = window
        return done

    def _whole(self, images: Any, labels: Any) -> LossAndLogits:
        """Run a micro-batch in one piece, in a run of one process: the fast path of most runs."""
        with self.engine.autocast():
            loss, logits = self._loss_and_logits(images, labels)
        self.engine.backward(loss, samples=self.task.size(labels) if self._weighted else None)
        with step_observer.active.aside():
            return _in_fp32(loss.detach()), _detached(logits)

    def _loss_and_logits(self, images: Any, labels: Any) -> LossAndLogits:
        """Run the forward pass of a whole micro-batch."""
        if self.compiled_for is None:
            return self.task.forward(self._wrapped, images, labels)
        with as_compiled(len(labels), self.compiled_for):
            return self.task.forward(self._wrapped, images, labels)

    def _capture(self) -> CapturedStep:
        try:
            return self.engine.capture(self._loss_and_logits)
        except ValueError as error:
            raise UserError(f"graph is true, but {error}; or write graph=false") from error

    def step(self, *, close: bool = False) -> StepResult:
        """End a micro-step, unless a captured step has ended it already; see `Engine.step`."""
        taken, self._taken = self._taken, None
        return self.engine.step(close=close) if taken is None else taken

    def remember(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Keep a micro-batch whose gradients a resumed run already has, in case of a rerun."""
        if self.config.auto_microbatch:
            self._window.append(self._part(images, labels))

    def close(self) -> None:
        """Forget the micro-batches of the window, because the window closes."""
        self._window = []

    def _part(self, images: torch.Tensor, labels: torch.Tensor) -> _Part:
        size = len(labels)
        counts, total = self._shared or (True, size)
        self._shared = None
        if not counts and self.config.distributed.sync_batchnorm:
            # Dummy images must not enter the BatchNorm statistics that all processes share.
            images, labels, size = images[:0], labels[:0], 0
        return _Part(images, labels, size, counts, total)

    def _attempt(self, parts: Sequence[_Part], samples: int | None) -> LossAndLogits | None:
        """Run `parts`; return loss and logits of the last, or None if any process lacks memory.

        Args:
            parts: Parts of one accumulation window, in order.
            samples: Number of images over which the losses are averaged, over all processes; None
                if the engine does not weight by images.
        """
        if not self.config.auto_microbatch:
            return self._run(parts, samples)
        done = None
        try:
            done = self._run(parts, samples)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # After the except block, because the traceback keeps the tensors of the failed pass alive.
        if not self.processes.any(done is None):
            return done
        self.engine.zero_grad()
        accelerators.empty_cache()
        return None

    @property
    def _model(self) -> nn.Module:
        # With its wrapper (DDP), a model averages gradients during the backward, where processes
        # would wait for one that ran out of memory. Without, they are averaged at window close.
        bare = self.config.auto_microbatch and self.processes.joined
        return self.engine.bare_model if bare else self.engine.model

    def _run(self, parts: Sequence[_Part], samples: int | None) -> LossAndLogits:
        if len(parts) == 1 and self.progress.pieces == 1:
            return self._run_whole(parts[0], samples)
        total = sum(part.total for part in parts)
        loss_sum = torch.zeros((), device=parts[-1].images.device)
        logits_of_pieces: list[torch.Tensor] = []
        for part in parts:
            count = part.size
            loss_sum = torch.zeros_like(loss_sum)
            logits_of_pieces = []
            size = max(1, -(-count // self.progress.pieces))
            for some, their in zip(part.images.split(size), part.labels.split(size), strict=True):
                piece = replace(part, images=some, labels=their, size=len(their))
                loss, logits = self._piece(piece, total, samples)
                loss_sum = loss_sum + loss * (piece.size / max(1, count))
                logits_of_pieces.append(logits)
        return loss_sum, torch.cat(logits_of_pieces)

    def _run_whole(self, part: _Part, samples: int | None) -> LossAndLogits:
        """Run one part in one piece; the fast path of `_run`."""
        loss, logits = self._piece(part, part.total, samples)
        return _in_fp32(loss), logits

    def _piece(self, piece: _Part, total: int, samples: int | None) -> LossAndLogits:
        """Run a piece of a part, and weight its loss by its share of `total` images."""
        with self.engine.autocast():
            if piece.size:
                loss, logits = self.task.forward(self._model, piece.images, piece.labels)
            else:  # The mean loss of no images would be nan.
                logits = self._model(piece.images)
                loss = logits.float().sum()
        # Multiplied by the number of processes, because averaging gradients divides by it.
        share = self.processes.size * piece.size / total if piece.counts else 0.0
        self.engine.backward(loss if share == 1 else loss * share, samples=samples)
        with step_observer.active.aside():
            return loss.detach(), logits.detach()

    def _split(self, images: int) -> None:
        if self.progress.pieces >= images:
            raise UserError(
                "there is not enough memory for a single image; write a smaller data.resolution or "
                "model.name, or a recipe that needs less, such as recipe=fp16"
            )
        first = self.progress.pieces == 1
        self.progress.pieces *= 2
        size = -(-images // self.progress.pieces)
        message = (
            f"there is not enough memory for {images} images at once; continuing with {size} at a "
            "time"
        )
        if first and any(isinstance(module, _BatchNorm) for module in self.engine.model.modules()):
            message += (
                ". BatchNorm then normalizes each of these parts instead of the whole batch, so "
                "the updates differ slightly"
            )
        warnings.warn(message, MicrobatchWarning, stacklevel=3)


def _detached(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs.detach()
    return tree_map_only(torch.Tensor, torch.Tensor.detach, outputs)


def _in_fp32(loss: torch.Tensor) -> torch.Tensor:
    return loss.float() if loss.dtype in HALVES else loss


@contextmanager
def out_of_memory_explained(config: RunConfig) -> Iterator[None]:
    """Turn an out-of-memory error in the block into a UserError that says what to try."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(config.out_of_memory(reason(error))) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error reports that memory ran out, on any device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        phrase in str(error) for phrase in ("can't allocate memory", "not enough memory")
    )
