"""Finds inf and NaN among the parameters and other inputs of a step, which a replay takes as given.

Masks that the program writes on purpose are not reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record import HALVES, Bad
from halfstep.doctor.record.sites import site
from halfstep.doctor.record.source import argument, statement
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.tape.tape import given_tensors
from halfstep.doctor.tensors.local import local
from halfstep.doctor.tensors.summary import is_finite, summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from halfstep.doctor.record import Birth, TensorSummary
    from halfstep.doctor.signals.values.origins import Origins, Source
    from halfstep.doctor.tape.tape import Entry

_LOGARITHMS = {"log", "log2", "log10"}
# These functions do not divide, so that -inf is beyond the range of the format.
_CONSTANTS = {"add", "cast", "mul", "sub"}
# Other functions can return inf that the program intends, such as the logarithm of a mask.
_SUMS = {
    *("bmm", "cumsum", "dot", "einsum", "inner", "linalg_vector_norm", "matmul", "mm", "norm"),
    *("prod", "square", "sum", "vdot"),
}
# Numbers that these are given with -inf are no mask, unless they look like one.
_COMPARING = {"sub", "subtract", "__sub__", "__rsub__"}


class Inputs:
    """Collects the inputs of investigated steps that contain inf or NaN.

    Args:
        origins: Contains the calls outside of an autograd graph that made a tensor.

    Attributes:
        found: The inputs, in the order of the steps.
        computed: Keys of the storages of tensors whose -inf the loop did not write on purpose.
    """

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self.found: list[Bad] = []
        self.computed: set[int] = set()

    def examine(
        self, entries: list[Entry], parameters: dict[str, torch.Tensor], iteration: int
    ) -> None:
        """Find the inputs of a bad step that are not finite.

        Args:
            entries: The calls of the step.
            parameters: The parameters of models and optimizers, by name.
            iteration: Number of the step.
        """
        for name, parameter in parameters.items():
            if not is_finite(parameter):
                makers = self._origins.of(parameter).makers  # if the loop updates it itself
                bad = _bad("parameter", name, parameter, iteration)
                self.found.append(replace(bad, makers=makers))
        known = set(map(id, parameters.values()))
        for entry, tensor in _given_and_not_finite(entries):
            if id(tensor) in known:
                continue
            counted, source = summary(tensor), self._origins.of(tensor)
            overflows = _is_overflow(counted, source)
            compared = _is_compared(entry) and not counted.is_mask
            if overflows or compared or _is_logarithm(counted, source):
                self.computed.add(storage_key(tensor))
            elif _is_mask(entry, counted):  # A mask of -inf is written on purpose.
                continue
            known.add(id(tensor))
            given = _given(entry, tensor, source, iteration)
            self.found.append(replace(given, is_mask=overflows))

    def examine_hidden(self, entries: list[Entry], iteration: int) -> None:
        """Find half-precision overflows in the inputs of a finite step, other than masks.

        Args:
            entries: The calls of the step.
            iteration: Number of the step.
        """
        for entry, tensor in _given_and_not_finite(entries):
            counted, source = summary(tensor), self._origins.of(tensor)
            maker = source.makers[0] if source.makers else None
            if maker is None or maker.format not in HALVES or maker.op not in _SUMS:
                continue
            if counted.infs > counted.negative_infs and not counted.nans:
                found = _given(entry, tensor, source, iteration)
                self.found.append(replace(found, is_hidden=True))

    def judge(self, births: Sequence[Birth], iteration: int) -> None:
        """Decide which inputs of a traced step made it bad.

        Args:
            births: The births in the step.
            iteration: Number of the step.
        """
        culprits = _culprits([each for each in self.found if each.iteration == iteration], births)
        self.found = [
            replace(each, is_culprit=any(each is other for other in culprits))
            if each.iteration == iteration
            else each
            for each in self.found
        ]

    def discard_parameters(self, iteration: int) -> bool:
        """Remove the parameters of a step from `found`, and return whether there were any.

        Args:
            iteration: Number of the step.
        """
        before = len(self.found)
        self.found = [
            each for each in self.found if each.what != "parameter" or each.iteration != iteration
        ]
        return len(self.found) < before


def _given_and_not_finite(entries: list[Entry]) -> Iterator[tuple[Entry, torch.Tensor]]:
    for entry, tensor in given_tensors(entries):
        if not tensor.requires_grad and not is_finite(tensor):
            yield entry, tensor


def _is_logarithm(counted: TensorSummary, source: Source) -> bool:
    """Return whether the loop took a logarithm of 0, other than to make a mask."""
    made = source.makers[0].op if source.makers else ""
    return made in _LOGARITHMS and not counted.is_mask


def _is_overflow(counted: TensorSummary, source: Source) -> bool:
    """Return whether a half format has made -inf of the finite constant of a mask."""
    maker = source.makers[0] if source.makers else None
    is_half = maker is not None and maker.format in HALVES and maker.op in _CONSTANTS
    return is_half and counted.nans == 0 and counted.infs == counted.negative_infs


def _is_compared(entry: Entry) -> bool:
    """Return whether a call compares its arguments, as a loss its targets."""
    name = "" if entry.kind == "module" else getattr(entry.function, "__name__", "")
    return name in _COMPARING or name.endswith("_loss")


def _is_mask(entry: Entry, counted: TensorSummary) -> bool:
    if entry.kind == "module":
        return counted.is_mask
    return counted.nans == 0 and counted.infs == counted.negative_infs


def _culprits(inputs: list[Bad], births: Sequence[Birth]) -> list[Bad]:
    """Return the inputs in which the inf or NaN of the culprit may have come from outside."""
    culprit = next((each for each in births if each.culprit), None)
    if culprit is None or culprit.phase != "given":
        return []
    kind, _, name = culprit.output.name.partition(" ")
    if kind in ("parameter", "buffer"):
        return [each for each in inputs if each.what == kind and each.name == name]
    found = [each for each in inputs if each.what in ("batch", "number")]
    # The culprit may be a view of the input, or the same memory in two calls.
    found = [each for each in found if (each.name == "batch") == (kind == "batch")] or found
    count = culprit.output.nans + culprit.output.infs
    return [each for each in found if each.count == count] or found


def _given(entry: Entry, tensor: torch.Tensor, source: Source, iteration: int) -> Bad:
    name = "batch" if entry.kind == "module" else entry.kind
    what = "batch" if tensor.ndim else "number"  # A number is a scale or a weight.
    return replace(
        _bad(what, name, tensor, iteration),
        makers=source.makers,
        is_known=source.is_known,
        site=site(entry.mark),
        expression=_expression(entry, tensor),
        is_combined=bool(entry.needs),
    )


def _expression(entry: Entry, tensor: torch.Tensor) -> str:
    """Return the expression of an argument in the program; "" if unknown."""
    given: dict[int | str, Any] = dict(enumerate(entry.args))
    given.update(entry.kwargs)
    at = next((at for at, each in given.items() if each is tensor), None)
    if at is None:
        return ""
    function = None if entry.kind == "module" else getattr(entry.function, "__name__", "")
    return argument(statement(entry.mark), function, len(entry.args), at)


def _bad(what: str, name: str, tensor: torch.Tensor, iteration: int) -> Bad:
    tensor = local(tensor).detach()
    if tensor.is_sparse:  # The index is one among its values.
        tensor = tensor.coalesce().values()
    wrong = ~tensor.isfinite()
    first = wrong.nonzero()[0].tolist()
    return Bad(
        what=what,
        name=name,
        kind="nan" if tensor.isnan().any() else "inf",
        index=tuple(first),
        count=int(wrong.sum()),
        iteration=iteration,
    )
