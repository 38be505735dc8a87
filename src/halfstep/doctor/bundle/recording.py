"""A step as a list of operators, which runs without the program's code; part of a bundle.

Below autograd, a step is a list of operators, including those of its backward passes. Each tensor
has a number, and the list refers to tensors by these numbers. The contents of tensors from outside
the step (parameters, buffers, the batch, the states of the random generators) are stored next to
the list.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

import torch

from halfstep.doctor.bundle.caller import Caller  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.internals import is_of_files, is_operator
from halfstep.lazy_dataclass import dataclass

OPERATOR, RANDOM, ALIAS, SCALE = "operator", "random", "alias", "scale"
_NAME = re.compile(r"\w+\.\w+\.\w+")
_TENSOR, _FLOAT, _DEVICE = "tensor", "float", "device"
_NAMED = {
    torch.dtype: "dtype",
    torch.device: _DEVICE,
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor from outside the step.

    Attributes:
        number: Number of the tensor in the step.
        name: "parameter head.weight", "buffer ...", "batch", "constant", "random state" or "".
        shape: Shape of the tensor.
        stride: Strides of the tensor, in elements.
        device: Type of the device that the tensor was on.
    """

    number: int
    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str


@dataclass(slots=True)
class Instruction:
    """An operator, or an action of the loop between two operators.

    Attributes:
        kind: "operator"; "scale", the operator that makes the loss scale; "alias", which makes a
            view of a tensor's memory; or "random", which sets the states of the random generators.
        name: The operator ("aten.mm.default").
        args: The arguments, as `encode` returns them.
        kwargs: The keyword arguments, as `encode` returns them.
        results: Numbers of the tensors that the instruction makes.
        caller: Index of the operator's caller in `Recording.callers`.
    """

    kind: str
    name: str = ""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    caller: int = 0


@dataclass(slots=True)
class Recording:
    """A recorded step.

    Attributes:
        instructions: The instructions in order.
        given: The tensors from outside the step.
        callers: The different callers of operators; `Instruction.caller` is an index into them.
        losses: Numbers of the tensors that the backward passes started from.
        gradients: Numbers of the gradients, by parameter name.
        ends: Numbers of the losses and gradients; without a backward, of the last call's results.
        scale: The loss scale; 1 without one.
        lines: Source text of the callers' lines, by file and line number.
    """

    instructions: list[Instruction] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    gradients: dict[str, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    scale: float = 1.0
    lines: dict[str, dict[int, str]] = field(default_factory=dict)


def encode(value: Any, number_of: Any) -> Any:
    """Return an argument as a value for JSON.

    Args:
        value: The argument.
        number_of: A function that returns the number of a tensor.

    Raises:
        TypeError: If an argument of this type cannot be stored.
    """
    if isinstance(value, torch.Tensor):
        return {_TENSOR: number_of(value)}
    if isinstance(value, list | tuple):
        return [encode(each, number_of) for each in value]
    if isinstance(value, float):
        return {_FLOAT: repr(value)}
    for kind, name in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(
        f"an operator has an argument of type {type(value).__name__}, which cannot be stored"
    )


def decode(value: Any, tensors: dict[int, torch.Tensor], device: str) -> Any:
    """Return the argument that `encode` has converted to a value for JSON.

    Args:
        value: The value from `encode`.
        tensors: The tensors of the step, by number.
        device: Type of the device that the step runs on now.

    Raises:
        ValueError: If `encode` cannot have returned this value.
    """
    if isinstance(value, list):
        return [decode(each, tensors, device) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"{value} is not a valid argument")
    ((kind, text),) = value.items()
    if kind == _TENSOR and text in tensors:
        return tensors[text]
    if kind == _FLOAT:
        return float(text)
    if kind == _DEVICE:
        named = torch.device(text)
        return named if named.type == "cpu" else torch.device(device)
    found = getattr(torch, text, None) if kind in _NAMED.values() else None
    if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        return found
    raise ValueError(f"{value} is not a valid argument")


def operator(name: str) -> Any:
    """Return an operator of torch's dispatcher by its name.

    Raises:
        ValueError: If there is no such operator, or if it reads or writes a file.
    """
    found: Any = None
    if _NAME.fullmatch(name):
        namespace, packet, overload = name.split(".")
        found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if not is_operator(found) or is_of_files(found):
        raise ValueError(
            f"there is no operator {name}; if a library defines it, write --import LIBRARY"
        )
    return found
