"""Samples of what models and losses are given: a few elements of each row of a batch.

A row is one sample of the data. Its elements tell it from others, so that the same sample is known
again in another epoch. Nothing is read while the program runs; `pairs`, `classes` and `inputs`
compare the samples at its end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from halfstep.doctor.internals import is_functorch_tensor, is_loss
from halfstep.doctor.record.sites import calling_line
from halfstep.doctor.signals.data.batches import Batches
from halfstep.doctor.signals.data.classes import ClassOrder, class_orders
from halfstep.doctor.signals.data.constant import Constants, constants
from halfstep.doctor.signals.data.inputs import InputScales, input_scales
from halfstep.doctor.signals.data.pairs import PairLedger, overlaps, pair_ledger
from halfstep.doctor.signals.data.passes import Passes
from halfstep.doctor.signals.data.rows import Rows
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.nesting import is_in_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

FIRST = 256
EVERY = 7
CALLS = 16384
BYTES = 16 * 2**20
ROWS = 64
ELEMENTS = 64
RUNS = 4
_INPUTS = 3  # tensors of a call
_LOSSES = frozenset(
    {
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    }
)
_DIFFERENCES = frozenset({"sub", "rsub", "__sub__", "__rsub__", "subtract"})


class RowSamples(Signal):
    """Takes the samples."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._training: list[Rows] = []
        self._evaluations: list[Rows] = []
        self._room = BYTES
        self._batches, self._passes = watched[Batches], watched[Passes]
        self._calls = 0
        self._last: Rows | None = None
        self._since = 0  # calls with data since the last backward
        self._trains: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Take a sample of the inputs of a model, or of the targets of a loss."""
        first = next((each for each in given if each.dim()), None)
        if first is None or is_loss(module):
            return
        if first.requires_grad:  # The output of another model, or an input that is trained.
            self._take_targets(given if is_in_graph(first) else ())
            return
        self._calls += 1
        if self._calls > FIRST and self._calls % EVERY:
            self._since += 1
            return
        if self._calls >= CALLS or self._room <= 0 or not self._is_model(module):
            return
        is_training = torch.is_grad_enabled() and any(each.requires_grad for each in made)
        alike = [each for each in given if each.dim() and len(each) == len(first)]
        sampled = [
            (each, taken) for each in alike[:_INPUTS] if (taken := self._sample(each)) is not None
        ]
        rows = Rows(
            self.watched.grammar.made,
            len(self.watched.registry.optimizers.notes),
            self.watched.registry.models.number(module),
            calling_line(),
            len(first),
            tuple(taken for _, taken in sampled),
            len(given) == 1,
            self._loaded([each for each, _ in sampled]) if len(given) > 1 else frozenset(),
            first.numel() // max(1, len(first)),
            module.training,
            len(sampled) == len(given),
            source=self._passes.latest,
            leads=self._since == 0,
        )
        if not rows.inputs:
            return
        if is_training:
            self._training.append(rows)
            self._last = rows
            self._since += 1
        elif not (torch.is_grad_enabled() and module.training):  # a frozen part in a training
            self._evaluations.append(rows)

    def _loaded(self, inputs: Sequence[torch.Tensor]) -> frozenset[int]:
        batch_of = self._batches.batch_of
        return frozenset(at for at, each in enumerate(inputs) if batch_of(each) is not None)

    def on_call(self, heard: Heard) -> None:
        """Take a sample of the targets of a loss, or of what is subtracted from an output."""
        if self._last is None or not (
            heard.name in _LOSSES or heard.name in _DIFFERENCES or heard.module is not None
        ):
            return
        options = heard.call.kwargs
        if getattr(heard.module, "reduction", options.get("reduction", "mean")) != "none":
            given = [*heard.call.args[:2], *(options.get("target"),)]
            tensors = [each for each in given if isinstance(each, torch.Tensor)]
            if heard.name in _DIFFERENCES and len({each.shape for each in tensors}) > 1:
                return
            self._take_targets(tensors)

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Close the calls that belong to a loss."""
        del losses
        self._last, self._since = None, 0

    def _take_targets(self, given: Sequence[torch.Tensor]) -> None:
        last = self._last
        if last is None or last.targets is not None or self._since != 1:
            return
        outputs = [each for each in given if each.requires_grad]
        targets = [each for each in given if not each.requires_grad and each.dim()]
        if len(outputs) == len(targets) == 1 and len(targets[0]) == last.length:
            last.targets, last.dims = self._sample(targets[0]), targets[0].dim()
            last.loss = calling_line()
            last.is_loaded = self._batches.batch_of(targets[0]) is not None

    def _sample(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a copy of a few elements of the first rows, shape (rows, elements)."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return None
        # A tensor inside a transform, such as torch.vmap, has no values that could be read later.
        if not tensor.numel() or tensor.is_complex() or is_functorch_tensor(tensor):
            return None
        rows, width = min(len(tensor), ROWS), tensor.numel() // len(tensor)
        part = tensor.detach()
        if width <= ELEMENTS or not part.is_contiguous():
            part = part[_places(tensor.shape)]
        else:  # Runs of elements, each in one or two lines of the processor's cache.
            distance = width // RUNS
            begin = part.storage_offset() + (distance - ELEMENTS // RUNS) // 2
            part = part.as_strided((rows, RUNS, ELEMENTS // RUNS), (width, distance, 1), begin)
        copy = part.clone(memory_format=torch.contiguous_format)
        self._room -= copy.nbytes
        return copy.view(rows, -1)

    def _is_model(self, module: nn.Module) -> bool:
        """Return whether a module has parameters, and is not a transform of data."""
        known = self._trains.get(module)
        if known is None:
            known = self._trains[module] = next(module.parameters(), None) is not None
        return known

    def freeze(self) -> dict[str, Any]:
        """Return what the samples tell; reads them."""
        return {
            PairLedger.signal: replace(
                pair_ledger(self._training),
                overlaps=overlaps(self._training, self._evaluations),
            ),
            ClassOrder.signal: class_orders(self._training),
            Constants.signal: constants(self._training),
            InputScales.signal: input_scales(self._training, self._evaluations),
        }


@lru_cache(maxsize=256)
def _places(shape: torch.Size) -> tuple[slice, ...]:
    """Return the places of the elements of a sample, spread over each row."""
    steps = [1] * (len(shape) - 1)

    def counts() -> list[int]:
        return [-(-size // step) for size, step in zip(shape[1:], steps, strict=True)]

    while prod(kept := counts()) > ELEMENTS:
        steps[kept.index(max(kept))] += 1
    return (slice(0, ROWS), *[slice((step - 1) // 2, None, step) for step in steps])
