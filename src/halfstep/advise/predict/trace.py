"""Records one training step, operator by operator, without a GPU and without tensor data.

The step runs under PyTorch's `FakeTensorMode`: tensors have shapes, dtypes and lifetimes, but no
values. A dispatch mode on top of it records the work of each operator, and which storages are
alive. Autocast casts as on CUDA, because half-precision recipes use CUDA's autocast policy on a
CPU too.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.advise.predict.allocated import as_allocated
from halfstep.advise.predict.live import LiveStorages
from halfstep.advise.predict.operators import Op, described, size_of, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Phase = Literal["forward", "backward", "optimizer"]

_DEVICE = torch.ops.prim.device.default
_FUSED_STEPS = ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_")
"""Steps of optimizers, which return nothing. They are recorded but not called, because those that
take a loss scale have no kernel without values: torch would compute the step with real tensors."""
_SOFTMAX_BACKWARD = ("_softmax_backward_data", "_log_softmax_backward_data")


@dataclass(frozen=True, slots=True)
class Call:
    """Equal operator calls of one phase of a step.

    Attributes:
        op: The work of each call.
        phase: The phase of the step.
        count: The number of calls.
    """

    op: Op
    phase: Phase
    count: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The work and memory of a training step.

    Attributes:
        calls: The operator calls.
        batch: Samples of a micro-step.
        held: Bytes in use before the step: parameters, optimizer state, buffers, the batch.
        saved: Bytes in use between forward and backward, without `held`: the tensors that autograd
            saves, and the loss.
        peak: Maximum bytes in use during the step, including `held`.
        reads: The number of times that the host waits to read a value from the device.
    """

    calls: tuple[Call, ...]
    batch: int
    held: int
    saved: int
    peak: int
    reads: int = 0

    @property
    def unknown(self) -> dict[str, int]:
        """The number of calls of each operator that the cost model does not know."""
        found: Counter[str] = Counter()
        for call in self.calls:
            if call.op.kind == "unknown":
                found[call.op.name] += call.count
        return dict(found)

    @property
    def flops(self) -> int:
        """Floating-point operations of all matrix products and convolutions."""
        return sum(call.op.flops * call.count for call in self.calls)


class Recorder(TorchDispatchMode):
    """Records the operators that run while it is active.

    Args:
        held: Tensors that exist before the step and are created outside the recorder.
        exact: Whether to count the exact sizes of storages, rather than sizes that are rounded up
            as by CUDA's allocator.
        check: Called before each operator; raises to end the trace.

    Attributes:
        phase: The phase to which operators are assigned.
        times: The number of calls that each operator counts as.
        live: The storages that are alive.
    """

    def __init__(
        self,
        held: Iterable[torch.Tensor] = (),
        *,
        exact: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._check = check
        self.phase: Phase = "forward"
        self.times = 1
        self.live = LiveStorages(exact=exact)
        self.live.see(held)
        self._held = self.live.now
        self._saved = 0
        self._reads = 0
        self._listed = True
        self._calls: Counter[tuple[Op, Phase]] = Counter()
        self._mask: int | None = None
        self._last: tuple[Op | None, int | None] = None, None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run and record an operator; return zero if the host reads a value."""
        del types
        if func is _DEVICE and not args[0].fake_mode.in_kernel_invocation:
            return args[0].fake_device  # a shortcut for the most frequent call
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001
            self._reads += self.times
            return _zero(args[0].dtype)
        if func is torch.ops.aten.equal.default:
            self._reads += self.times
            return False  # the values of two tensors usually differ
        self._check()
        steps = func.overloadpacket.__name__ in _FUSED_STEPS
        out = None if steps else as_allocated(func, args, func(*args, **(kwargs or {})))
        if self._listed:
            for op in described(func, args, kwargs or {}, out):
                self._enter(op, args, out)
        self.live.see(tensors(out))
        return out

    def _enter(self, op: Op, args: tuple[Any, ...], out: Any) -> None:
        """Record an operator; one that CUDA runs differently from a CPU is recorded as on CUDA.

        Autocast passes `dtype=torch.float32` to softmax. Its CUDA kernel reads half-precision
        values and writes fp32 values in one pass, and its backward the reverse (ATen's `softmax`,
        `half_to_float`); a CPU casts separately. Dropout on CUDA is one kernel that writes a mask
        of bytes (`native_dropout`).
        """
        if op.name == "bernoulli_":
            self._mask = _address(args[0])
            return
        if self._mask is not None and op.name in ("div_", "mul"):
            operands = list(tensors(list(args)))
            masks = [each for each in operands if _address(each) == self._mask]
            if masks and op.name == "div_":
                return
            if masks:
                self._mask = None
                mask = sum(size_of(each) for each in masks)
                written = op.written + sum(each.numel() for each in masks)
                op = replace(op, name="native_dropout", read=op.read - mask, written=written)
        before, result = self._last
        given = _address(args[0] if args else None)
        joined = None
        if before is not None and given == result and given is not None:
            if before.name == "_to_copy" and op.name in ("_softmax", "_log_softmax"):
                joined = replace(op, read=before.read, format=before.format)
            elif before.name in _SOFTMAX_BACKWARD and op.name == "_to_copy":
                joined = replace(before, written=op.written, format=op.format)
        if joined is not None and before is not None:
            self._calls[before, self.phase] -= self.times
            op = joined
        self._calls[op, self.phase] += self.times
        self._last = op, _address(out)

    def record(self, op: Op, times: int) -> None:
        """Record an operator that ran without this mode."""
        if self._listed:
            self._calls[op, self.phase] += times * self.times

    def begin(self, *, listed: bool = True) -> None:
        """Start a step: clear the record, and count the storages alive now as `held`.

        Args:
            listed: Whether to record the operators, or only which storages are alive.
        """
        self._listed = listed
        self._calls.clear()
        self._reads = self._saved = 0
        self._held = self.live.peak = self.live.now
        self.phase = "forward"

    def forward_is_done(self) -> None:
        """Start the backward phase, and count the bytes added since `begin` as `saved`.

        Only the first micro-step of a step counts, because later ones also hold gradients.
        """
        self._saved = self._saved or self.live.now - self._held
        self.phase = "backward"

    def trace(self, batch: int) -> Trace:
        """Return the recorded step."""
        calls = tuple(Call(op, phase, count) for (op, phase), count in self._calls.items() if count)
        return Trace(calls, batch, self._held, self._saved, self.live.peak, self._reads)


@contextmanager
def recorded(
    held: Iterable[torch.Tensor] = (),
    *,
    exact: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Recorder]:
    """Record the operators that run inside the block; `Recorder` describes the arguments."""
    recorder = Recorder(held, exact=exact, check=check)
    try:
        with recorder:
            yield recorder
    finally:
        recorder.live.close()


def _address(value: Any) -> int | None:
    """Return the identity of a tensor's storage; None for any other value."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return int(value.untyped_storage()._cdata)  # noqa: SLF001


def _zero(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0
