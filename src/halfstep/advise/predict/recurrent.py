"""Records the recurrent layers of torch (LSTM, GRU, RNN) as cuDNN runs them.

On a CPU, torch splits a layer into a few operators for each time step, so that a trace would grow
with the length of the sequences. cuDNN multiplies the inputs of all time steps at once, and then
runs one kernel for the hidden state of each time step (Appleyard et al., 2016, arXiv:1604.01946).
`Recurrent` replaces the whole call, forward and backward, by the record of these kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from halfstep.advise.predict.operators import Op, format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Record = Callable[[Op, int], None]

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_KEPT = 2
"""Vectors that a time step saves besides its gates: the cell or candidate, and the output."""


class _Layer(NamedTuple):
    """One direction of one layer.

    Attributes:
        steps: Time steps.
        batch: Sequences.
        inputs: Length of the input vector.
        gates: Length of all gates together.
        hidden: Length of the vector that the next time step reads.
        format: The format of the products.
        size: Bytes of an element.
    """

    steps: int
    batch: int
    inputs: int
    gates: int
    hidden: int
    format: str
    size: int

    def forward(self) -> Iterator[tuple[Op, int]]:
        """Yield the kernels of a forward pass, and how often each one runs."""
        rows = self.steps * self.batch
        yield self._op("gemm", rows, self.gates, self.inputs), 1
        yield self._op("recurrent", self.batch, self.gates, self.hidden), self.steps

    def backward(self) -> Iterator[tuple[Op, int]]:
        """Yield the kernels of a backward pass, and how often each one runs."""
        rows = self.steps * self.batch
        yield self._op("recurrent", self.batch, self.hidden, self.gates), self.steps
        yield self._op("gemm", rows, self.inputs, self.gates), 1
        yield self._op("gemm", self.gates, self.inputs, rows), 1
        yield self._op("gemm", self.gates, self.hidden, rows), 1

    def _op(self, kind: str, m: int, n: int, k: int) -> Op:
        return Op(
            name="_cudnn_rnn",
            kind=kind,
            format=self.format,
            flops=2 * m * n * k,
            read=self.size * (m * k + k * n),
            written=self.size * m * n,
            elements=max(m * k, k * n, m * n),
            m=m,
            n=n,
            k=k,
        )


class Recurrent(TorchFunctionMode):
    """Replaces recurrent layers by the record of their kernels while it is active.

    Args:
        record: Called with each kernel, and how often it runs.
    """

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch; record a recurrent layer instead of running it."""
        del types
        name = getattr(func, "__name__", "")
        if name not in _GATES or func is not getattr(torch._C._VariableFunctions, name):  # noqa: SLF001
            return func(*args, **(kwargs or {}))
        packed = isinstance(args[1], torch.Tensor) and not args[1].is_floating_point()
        if packed:
            value, lengths, hidden, weights, *rest = args
            biased, layers, _, _, both_ways = rest
            steps, batch = len(lengths), max(1, len(value) // len(lengths))
        else:
            value, hidden, weights, *rest = args
            biased, layers, _, _, both_ways, batch_first = rest
            steps, batch = value.shape[:2][:: -1 if batch_first else 1]
        hidden = [hidden] if isinstance(hidden, torch.Tensor) else list(hidden)
        if torch.is_autocast_enabled("cpu"):
            half = torch.get_autocast_dtype("cpu")
            value, *hidden = (each.to(half) for each in (value, *hidden))
            weights = [each.to(half) for each in weights]
        per_layer = len(weights) // (layers * (1 + both_ways))
        found = []
        for at in range(0, len(weights), per_layer):
            into, within = weights[at : at + 2]
            shape = steps, batch, into.shape[1], into.shape[0], within.shape[1]
            found.append(_Layer(*shape, format_of(within), within.element_size()))
        del biased
        width = (1 + both_ways) * found[0].hidden
        return _Stack.apply(found, self._record, width, len(hidden), value, *hidden, *weights)


class _Stack(torch.autograd.Function):
    """All layers of a recurrent module, in one call of cuDNN."""

    @staticmethod
    def forward(
        ctx: Any,
        layers: Sequence[_Layer],
        record: Record,
        width: int,
        states: int,
        value: torch.Tensor,
        *others: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        _record(record, layers, "forward")
        kept = sum(each.steps * each.batch * (each.gates + _KEPT * each.hidden) for each in layers)
        ctx.save_for_backward(value, *others, value.new_empty(kept))
        ctx.layers, ctx.record = layers, record
        hidden = [torch.empty_like(each) for each in others[:states]]
        return value.new_empty((*value.shape[:-1], width)), *hidden

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        del grads
        _record(ctx.record, ctx.layers, "backward")
        *given, _ = ctx.saved_tensors
        wanted = zip(given, ctx.needs_input_grad[4:], strict=True)
        made = (torch.empty_like(each) if needed else None for each, needed in wanted)
        return None, None, None, None, *made


def _record(record: Record, layers: Sequence[_Layer], phase: str) -> None:
    for layer in layers:
        for op, times in getattr(layer, phase)():
            record(op, times)
