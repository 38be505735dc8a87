"""Finds the operator that makes the first inf or NaN that reaches the loss or a gradient.

A dispatch mode examines the output of each operator. A birth is an operator with a non-finite
output and finite inputs. The non-finite results of each birth are followed from operator to
operator, by their storages. The culprit is the first birth whose results reach the loss or a
gradient; an overflow that a division turns into 0 does not reach them. Infinities that a program
writes on purpose (masks) are not births, but an operator that makes NaN from them is a birth.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.doctor.bundle.caller import Caller
from halfstep.doctor.internals import (
    changes_inputs,
    current_node,
    is_cast,
    is_only_cast_on_cuda,
    next_sequence_number,
    node_number,
    running_function,
)
from halfstep.doctor.record import HALVES as HALF_FORMATS
from halfstep.doctor.record import PRODUCTS, Birth, TensorSummary
from halfstep.doctor.record.sites import Mark, lines_below, site
from halfstep.doctor.replay.dependence import Dependence
from halfstep.doctor.replay.headroom import Headroom
from halfstep.doctor.replay.hidden_writes import HiddenWrites
from halfstep.doctor.replay.lineage import Lineage
from halfstep.doctor.replay.memory import Unfilled, is_whole, storage_key
from halfstep.doctor.replay.products import Products
from halfstep.doctor.replay.rounding import Rounding
from halfstep.doctor.tensors.inexact import is_inexact
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.doctor.tensors.operands import dead_rows, exact, floats, scalars_of
from halfstep.doctor.tensors.summary import is_finite, summary
from halfstep.formats import torch_dtype
from halfstep.formats.dtypes import HALVES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfstep.doctor.bundle.recorder import Recorder
    from halfstep.doctor.signals.values.positions import Positions
    from halfstep.doctor.tape.tape import Entry

_WRITES_NUMBERS = (
    "aten.masked_fill",
    "aten.full",
    "aten.full_like",
    "aten.new_full",
    "aten.fill",
    "aten.fill_",
    "aten.scalar_tensor",
    "aten.where",
    "aten.lift_fresh",
    "aten.lift_fresh_copy",
    "aten.masked_fill_",
    "aten.index_put",
    "aten.index_put_",
)
_CAST = "aten._to_copy"
_MATRIX = 2  # dimensions
_WAVES = {"aten.sin", "aten.cos"}
COMPUTED = "computed"
"""The name of a tensor from outside the step whose -inf was not written on purpose."""
_ON_PURPOSE = -1
FOLLOWERS = 6


@dataclass(frozen=True, slots=True)
class Applied:
    """An operator that has run.

    Attributes:
        func: The overload of the operator.
        op: Name of the operator, without the overload.
        args: The arguments.
        kwargs: The keyword arguments.
        inputs: The floating-point and complex tensors in the arguments that the operator reads.
        values: The contents of `inputs` before the operator ran.
        caller: The caller of the operator.
    """

    func: Any
    op: str
    args: Any
    kwargs: Any
    inputs: list[torch.Tensor]
    values: list[torch.Tensor]
    caller: Caller

    @property
    def name(self) -> str:
        """Name of the operator; that of `x.exp()` for `x.exp_()`."""
        return self.op.removesuffix("_") if changes_inputs(self.func) else self.op


class Tracer(TorchDispatchMode):
    """Traces one step.

    Args:
        where: A function that returns path and class of the module that runs.
        names: Names of the tensors from outside the step (parameters, buffers, batch), by key of
            their storage.
        boundary: The file that replays the program's calls; see `lines_below`.
        positions: Receives casts and ascending whole numbers.
        recorder: The recorder of the operators; None if the step is not recorded.
        parameters: Names of the parameters of models and optimizers, by key of their storage.
        weights: The parameters, by name.

    Attributes:
        recorder: The recorder of the operators; None if the step is not recorded.
        births: The births, in order; `verdict` completes them.
        headroom: The half-precision value nearest to overflow.
        detached: Names of parameters that were cast to a half format outside autograd, now or in
            an earlier step.
        products: The half-precision matrix products of the forward.
        dependence: The parameters whose values the step depends on.
        rounding: The lines that lose most of what they compute in half precision.
        hidden_writes: The writes that autograd does not notice.
        has_halves: Whether an operator was given or made a half-precision tensor.
    """

    def __init__(
        self,
        where: Callable[[], tuple[str, str]],
        names: dict[int, str],
        boundary: str,
        positions: Positions,
        recorder: Recorder | None = None,
        parameters: Mapping[int, str] | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, without annotations
        self._where = where
        self._names = names
        self._boundary = boundary
        self._positions = positions
        self.detached: set[str] = set()
        self._weights = weights or {}
        self.recorder = recorder
        self._mark: Mark | None = None
        self._is_autocast = False
        self._taints: dict[int, frozenset[int]] = {}
        self._lineage = Lineage()
        self._unfilled = Unfilled()
        self._nodes: dict[int, tuple[str, Caller]] = {}
        self.births: list[Birth] = []
        self._consumers: list[list[str]] = []
        self._swallowed: list[list[str]] = []
        self.headroom = Headroom()
        self.products = Products()
        self.dependence = Dependence(parameters or {})
        self.rounding = Rounding(names)
        self.hidden_writes = HiddenWrites()
        self.has_halves = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        before = None
        if changes_inputs(func):  # The operator overwrites inputs that are examined after it.
            before = [each.clone() for each in floats((args, kwargs))]
        written = self.recorder.given(func, args, kwargs) if self.recorder else None
        result = func(*args, **kwargs)
        op = str(func.overloadpacket)
        caller = self.caller(op)
        if self.recorder:
            self.recorder.made(written, result, caller)
        given, made = tensors_in((args, kwargs)), tensors_in(result)
        self.has_halves |= any(each.dtype in HALVES for each in (*given, *made))
        self.rounding.take(op, func, args, kwargs, result, caller)
        self.hidden_writes.take(op, func, args, given, caller)
        if not caller.node:
            self.dependence.take(op, given, made, caller, enabled=torch.is_grad_enabled())
        inputs = [each for each in given if is_inexact(each)]
        values = inputs if before is None else before
        if self._unfilled.allocate(op, values, made):
            self._allocated(op, floats(result), caller)
            return result
        if not caller.node:
            self._note_cast(op, func, args, kwargs, result, caller)
            self.products.take(op, args, caller)
            self._note_copies(op, given)
            half = self._lineage.half(storage_key(args[0])) if op in _WAVES else None
            if half is not None:
                self._positions.angles(args[0], torch_dtype(half.format), caller.module, half.mark)
        if op == "aten.lift_fresh":  # Another tensor may have used the same memory before.
            self._lineage.forget(storage_key(result))
        if not func.is_view and func.namespace != "prim":
            read = self._unfilled.read(func, op, args, kwargs, inputs)
            outputs = [each for each in made if is_inexact(each)]
            if changes_inputs(func) and not outputs:
                outputs = inputs[:1]
            inputs = [each for each, is_read in zip(inputs, read, strict=True) if is_read]
            values = [each for each, is_read in zip(values, read, strict=True) if is_read]
            self._look(Applied(func, op, args, kwargs, inputs, values, caller), outputs)
        return result

    def begin(self, entry: Entry) -> None:
        """Set the call of the training loop that the next operators belong to."""
        self._mark, self._is_autocast = entry.mark, bool(entry.autocast)
        if self.recorder:
            self.recorder.begin(entry)

    def caller(self, op: str) -> Caller:
        """Return the caller of the operator that has just run."""
        node = current_node()
        line, user_line = lines_below(self._boundary, self._mark)
        function = running_function(self._boundary)
        if node is None:
            caller = Caller(*self._where(), line, user_line, function)
            self._nodes.setdefault(next_sequence_number() - 1, (op, caller))
            return caller
        forward_op, made = self._nodes.get(node_number(node), ("", Caller()))
        if forward_op and line == self._mark:
            # The stack has a line only for a backward in Python; others get their forward's line.
            line, user_line = made.line, made.user_line
        return Caller(
            made.module, made.module_kind, line, user_line, function, node.name(), forward_op
        )

    def _note_cast(
        self, op: str, func: Any, args: Any, kwargs: Any, result: Any, caller: Caller
    ) -> None:
        if op == "aten.arange" and result.dtype in HALVES:
            self._positions.made(result, caller.module, caller.user_line)
        elif op == "aten.cumsum" and result.dtype in HALVES:
            marks, dim = args[:2]
            self._positions.counted(marks, dim, result, caller.module, caller.user_line)
        if not is_cast(func) or kwargs.get("dtype") not in HALVES:
            return
        self._positions.cast(args[0], result, caller.module, caller.user_line)
        kind, _, name = self._names.get(storage_key(args[0]), "").partition(" ")
        if kind == "parameter" and not (torch.is_grad_enabled() and args[0].requires_grad):
            self.detached.add(name)

    def _note_copies(self, op: str, given: list[torch.Tensor]) -> None:
        """Find operands that are half-precision copies of parameters, outside of autograd."""
        if not op.startswith(PRODUCTS) or not torch.is_grad_enabled():
            return
        for each in given:
            if each.dtype not in HALVES or each.requires_grad or each.dim() < _MATRIX:
                continue
            both = each, each.transpose(0, 1)
            self.detached |= {
                name
                for name, weight in self._weights.items()
                if weight.requires_grad and weight.dtype not in HALVES
                for side in both
                if side.shape == weight.shape and side.equal(weight.detach().to(side.dtype))
            }

    def _allocated(self, op: str, outputs: list[torch.Tensor], caller: Caller) -> None:
        for each in outputs:
            key = storage_key(each)
            self._taints[key] = frozenset()
            self._lineage.note(key, op, each.dtype, (), caller.line, ())

    def _look(self, done: Applied, outputs: list[torch.Tensor]) -> None:
        coming = frozenset[int]()
        for tensor, value in zip(done.inputs, done.values, strict=True):
            coming |= self._taint_of(tensor, value)
        written = [self._unfilled.write(done.func, done.op, each) for each in outputs]
        sound = [whole and is_finite(each) for whole, each in zip(written, outputs, strict=True)]
        for producer in self._open_births(done.inputs):
            _append(self._consumers[producer], done.name)
            if all(sound) and not done.caller.node:
                _append(self._swallowed[producer], done.name)
        for output, known, finite in zip(outputs, written, sound, strict=True):
            key = storage_key(output)
            rest = frozenset[int]()
            if not known or (changes_inputs(done.func) and not is_whole(output)):
                rest = self._taints.get(key, rest)
            if not known:  # The other elements of the output are not written yet.
                self._taints[key] = rest | coming
            elif not finite:
                self._taints[key] = rest | self._judge(done, output, coming)
            elif not rest:
                self._taints.pop(key, None)
            if known and finite and not done.caller.node:
                self.headroom.take(output, done.caller.module)
            self._note_lineage(done, key, output.dtype)

    def _note_lineage(self, done: Applied, key: int, dtype: torch.dtype) -> None:
        self._lineage.note(
            key,
            done.name,
            dtype,
            scalars_of(done.args, done.kwargs),
            done.caller.line,
            [storage_key(each) for each in done.inputs],
            self._rounded(done.inputs, dtype),
        )

    def _rounded(self, inputs: list[torch.Tensor], dtype: torch.dtype) -> list[float]:
        """Return the numbers in tensors without dimensions that a half format has rounded.

        The number may be in half precision already, or only the output of the operator.

        Args:
            inputs: The inputs of an operator; those that an operator made are left out.
            dtype: Dtype of its output.
        """
        numbers = [
            each
            for each in inputs
            if each.ndim == 0 and each.is_floating_point()
            if storage_key(each) not in self._lineage
        ]
        wider = [each for each in numbers if dtype in HALVES and each.dtype not in HALVES]
        return [
            *(float(each) for each in numbers if each.dtype in HALVES and not self._has_name(each)),
            *(float(each.to(dtype)) for each in wider if each.to(dtype) != each),
        ]

    def _has_name(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in self._names

    def _taint_of(self, tensor: torch.Tensor, value: torch.Tensor) -> frozenset[int]:
        key = storage_key(tensor)
        if key in self._taints:
            return self._taints[key]
        if key in self._lineage or is_finite(value):
            return frozenset()
        # The tensor came from outside the step: a batch, a parameter, a mask.
        counted = summary(value, self._names.get(key, ""))
        if _is_written(counted):
            self._taints[key] = frozenset({_ON_PURPOSE})
        else:
            self._taints[key] = frozenset({self._add(_given(counted))})
        return self._taints[key]

    def _judge(self, done: Applied, output: torch.Tensor, coming: frozenset[int]) -> frozenset[int]:
        blamed = coming - {_ON_PURPOSE}
        if blamed:
            return blamed
        counted = summary(output)
        if counted.nans == 0:
            scalars = scalars_of(done.args, done.kwargs)
            if done.op in _WRITES_NUMBERS and (
                any(math.isinf(each) for each in scalars)
                or _ON_PURPOSE in coming
                or "lift" in done.op
            ):
                return frozenset({_ON_PURPOSE})
            if _ON_PURPOSE in coming and bool((output != math.inf).all()):
                return frozenset({_ON_PURPOSE})
        birth = self._birth(done, counted)
        return frozenset({self._add(replace(birth, on_purpose=_ON_PURPOSE in coming))})

    def _birth(self, done: Applied, output: TensorSummary) -> Birth:
        caller, values = done.caller, done.values
        keys = [storage_key(each) for each in done.inputs]
        names = [self._names.get(key, "") for key in keys]
        producers = [self._lineage.op(key) for key in keys]
        before = dict(zip(map(id, done.inputs), values, strict=True))
        return Birth(
            op=done.name,
            phase="backward" if caller.node else "forward",
            kind="nan" if output.nans else "inf",
            culprit=False,
            module=caller.module,
            module_kind=caller.module_kind,
            forward_op=caller.forward_op,
            node=caller.node,
            inputs=tuple(map(summary, values, names)),
            output=output,
            scalars=tuple(scalars_of(done.args, done.kwargs)),
            exact=exact(done.func, done.args, done.kwargs, before),
            dead_rows=dead_rows(values, done.args),
            consumers=(),
            producers=tuple(each for each in producers if each),
            site=site(caller.line),
            user_site=site(caller.user_line),
            lineage=self._lineage.of(keys),
            function=caller.function,
            only_on_cpu=self._is_only_on_cpu(done, output),
            overload=str(done.func).removeprefix(f"{done.op}."),
        )

    def _is_only_on_cpu(self, done: Applied, output: TensorSummary) -> bool:
        if not self._is_autocast or done.caller.node or output.format not in HALF_FORMATS:
            return False
        if done.kwargs.get("dtype") is not None:  # On CUDA, autocast keeps this format.
            return False
        on_cpu = all(each.device.type == "cpu" for each in done.inputs)
        # Autocast on a CPU does not cast inputs of such operators: the program cast them itself.
        cast = any(self._lineage.op(storage_key(each)) == _CAST for each in done.inputs)
        return on_cpu and not cast and is_only_cast_on_cuda(done.func)

    def _add(self, birth: Birth) -> int:
        self.births.append(birth)
        self._consumers.append([])
        self._swallowed.append([])
        return len(self.births) - 1

    def _open_births(self, inputs: list[torch.Tensor]) -> set[int]:
        found: set[int] = set()
        for each in inputs:
            found |= self._taints.get(storage_key(each), frozenset())
        return found - {_ON_PURPOSE}

    def verdict(self, ends: Any) -> tuple[Birth, ...]:
        """Return the births; the first one whose results reached an end is the culprit.

        Args:
            ends: The final tensors of the step (loss and gradients), in any nested structure.
        """
        reached: set[int] = set()
        for each in tensors_in(ends):
            if not is_finite(each):
                reached |= self._taints.get(storage_key(each), frozenset())
        culprit = min(reached - {_ON_PURPOSE}, default=None)
        return tuple(
            replace(
                birth,
                culprit=number == culprit,
                consumers=tuple(self._consumers[number]),
                swallowed=tuple(self._swallowed[number]),
            )
            for number, birth in enumerate(self.births)
        )


def _given(counted: TensorSummary) -> Birth:
    return Birth(
        op="",
        phase="given",
        kind="nan" if counted.nans else "inf",
        culprit=False,
        module="",
        module_kind="",
        forward_op="",
        node="",
        inputs=(),
        output=counted,
        scalars=(),
        exact=None,
        dead_rows=0,
        consumers=(),
        producers=(),
        site=None,
        user_site=None,
    )


def _is_written(counted: TensorSummary) -> bool:
    """Return whether infinities in an input were written on purpose: a mask or a constant."""
    if counted.nans or counted.infs > counted.negative_infs or counted.name == COMPUTED:
        return False
    if counted.name == "batch":
        return counted.is_mask
    return not counted.name.startswith("parameter")


def _append(names: list[str], op: str) -> None:
    if len(names) < FOLLOWERS and op not in names:
        names.append(op)
