"""Forward and backward of a micro-batch, in pieces where memory does not suffice for the whole.

The pieces are several losses of one micro-step, weighted by their share of it, so that the window
holds the gradient of the whole batch. Out of memory, the window so far is made again: a backward
that was interrupted has dropped it.

Of several processes each has its part of the batch, weighted so that the mean over the processes is
the mean over the images; and all of them split when one must.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from halfstep import step_observer
from halfstep.errors import UserError, reason
from halfstep.techniques.base import HALVES
from halfstep.train.build.compiling import as_compiled
from halfstep.train.processes.processes import ALONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from halfstep.engine import Engine
    from halfstep.train.build.loss import Loss
    from halfstep.train.config import Config
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.in_step import Portion
    from halfstep.train.run.progress import Progress

LossAndLogits = tuple[torch.Tensor, torch.Tensor]
"""The mean loss of a micro-batch, a scalar, and its logits (N, classes)."""


@dataclass(frozen=True, slots=True)
class _Part:
    """This process's part of a micro-batch, and the images of all parts that count."""

    images: torch.Tensor
    labels: torch.Tensor
    size: int
    counts: bool
    total: int


class MicrobatchWarning(UserWarning):
    """A batch is split for want of memory."""


@dataclass
class MicroBatches:
    """Runs micro-batches through an engine."""

    engine: Engine
    config: Config
    progress: Progress
    processes: Processes = ALONE
    loss: Loss = functional.cross_entropy
    compiled_for: int | None = None

    def __post_init__(self) -> None:
        self._shared: tuple[bool, int] | None = None
        # Where a step is one batch, nothing is uneven, and weighting would only cost exactness.
        self._weighted = self.engine.accumulate > 1
        self._window: list[_Part] = []
        self._can_be_whole = self.processes.size == 1 and not self.config.auto_microbatch
        self._wrapped = self.engine.model

    def expect(self, portion: Portion) -> None:
        """Say what part of its batch the next micro-batch is; by default it is all of it."""
        self._shared = portion.counted > 0, portion.total

    def add(self, images: torch.Tensor, labels: torch.Tensor) -> LossAndLogits:
        """Add the gradients of a micro-batch, on the device and normalised, to the window.

        Returns:
            Its mean loss, a scalar, and its logits (N, classes), both detached.

        Raises:
            UserError: If there is not enough memory for a single image.
            RuntimeError: As torch does, if memory does not suffice and the batch may not be split.
        """
        if self._can_be_whole and self.progress.pieces == 1:
            return self._whole(images, labels)
        part = self._part(images, labels)
        window = [*self._window, part] if self.config.auto_microbatch else []
        done = self._attempt([part], part.total if self._weighted else None)
        while done is None:
            self._split(len(labels))
            together = sum(each.total for each in window)
            done = self._attempt(window, together if self._weighted else None)
        self._window = window
        return done

    def _whole(self, images: torch.Tensor, labels: torch.Tensor) -> LossAndLogits:
        """Run a micro-batch that is one piece, and all of it this process's, as most are."""
        engine, model = self.engine, self._wrapped
        with engine.autocast():
            step_observer.active.runs(model, self.loss, images, labels)
            if self.compiled_for is None:
                logits = model(images)
            else:
                with as_compiled(len(labels), self.compiled_for):
                    logits = model(images)
            loss = self.loss(logits, labels)
        samples = len(labels) if self._weighted else None
        observer = step_observer.active
        if observer.listens:
            observer.ran(loss)
            engine.backward(loss, samples=samples)
            with observer.aside():
                return _in_fp32(loss.detach()), logits.detach()
        value = loss.detach()
        observer.ran(value)
        engine.backward(loss, samples=samples)
        return _in_fp32(value), logits.detach()

    def remember(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take note of a micro-batch of the open window whose gradients are there already."""
        if self.config.auto_microbatch:
            self._window.append(self._part(images, labels))

    def close(self) -> None:
        """End the window."""
        self._window = []

    def _part(self, images: torch.Tensor, labels: torch.Tensor) -> _Part:
        size = len(labels)
        counts, total = self._shared or (True, size)
        self._shared = None
        if not counts and self.config.distributed.sync_batchnorm:
            # Images that do not count must not be in the statistics that all processes share.
            images, labels, size = images[:0], labels[:0], 0
        return _Part(images, labels, size, counts, total)

    def _attempt(self, parts: Sequence[_Part], samples: int | None) -> LossAndLogits | None:
        """Return the loss and the logits of the last of `parts`, or None when out of memory."""
        if not self.config.auto_microbatch:
            return self._run(parts, samples)
        done = None
        try:
            done = self._run(parts, samples)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Out of the except block, or the traceback would keep alive what did not fit.
        if not self.processes.any(done is None):
            return done
        self.engine.zero_grad()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return None

    @property
    def _model(self) -> nn.Module:
        # A process that runs out of memory is not to leave the others waiting within a backward:
        # without its wrapper, a model's gradients are averaged when the window closes.
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
        """Do the same for a micro-batch that is a window of one piece, as most are."""
        loss, logits = self._piece(part, part.total, samples)
        return _in_fp32(loss), logits

    def _piece(self, piece: _Part, total: int, samples: int | None) -> LossAndLogits:
        """Run a piece of a part; `total` images are in the window."""
        with self.engine.autocast():
            logits = self._model(piece.images)
            # The mean of nothing is not a number.
            loss = self.loss(logits, piece.labels) if piece.size else logits.float().sum()
        # The mean over processes that follows divides by their number.
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
        said = (
            f"there is not enough memory for {images} images at once; continuing with {size} at a "
            "time"
        )
        if first and any(isinstance(each, _BatchNorm) for each in self.engine.model.modules()):
            said += (
                ". BatchNorm then normalizes each of these parts instead of the whole batch, so "
                "the updates differ slightly"
            )
        warnings.warn(said, MicrobatchWarning, stacklevel=3)


def _in_fp32(loss: torch.Tensor) -> torch.Tensor:
    return loss.float() if loss.dtype in HALVES else loss


@contextmanager
def out_of_memory_explained(config: Config) -> Iterator[None]:
    """Say what to try when memory does not suffice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        splitting = "" if config.auto_microbatch else "auto_microbatch=true, "
        smaller = f"batch_size={max(1, config.batch_size // 2)} accumulate={config.accumulate * 2}"
        narrow = "" if config.build_recipe().autocast else ", recipe=fp16 or recipe=bf16"
        raise UserError(
            f"there is not enough memory for batches of {config.batch_size} images "
            f"({reason(error)}); "
            f"try {splitting}{smaller}{narrow}, or a smaller data.resolution"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that there was not enough memory, on whatever device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        said in str(error) for said in ("can't allocate memory", "not enough memory")
    )
