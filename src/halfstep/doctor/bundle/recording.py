"""A step as a list of operators, which a bundle contains and which runs without the program's code.

Below autograd, a step is a list of operators, including those of its backward passes. Their
arguments are numbers, formats, and the numbers of tensors. Tensors from outside the step
(parameters, buffers, the batch, the states of the generators) are stored next to the list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch

from halfstep.doctor.bundle.caller import Caller  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.internals import is_of_files, is_operator

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
        number: Its number in the step.
        name: Its name: "parameter head.weight", "buffer ...", "batch", "constant".
        shape: Its shape.
        stride: Its strides.
        device: The type of its device.
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
        kind: "operator"; "scale", the operator that makes the loss scale; "alias", a view of a
            tensor's memory; or "random", a new state of the generators.
        name: The operator ("aten.mm.default").
        args: Its arguments, as `encode` writes them.
        kwargs: Its keyword arguments.
        results: Numbers of the tensors that it makes.
        caller: Number of its caller in `Recording.callers`.
    """

    kind: str
    name: str = ""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    caller: int = 0


@dataclass(slots=True)
class Recording:
    """A step.

    Attributes:
        instructions: The instructions in order.
        given: Tensors from outside.
        callers: Callers of operators; the first is a placeholder.
        losses: Numbers of the tensors that the backward passes started from.
        gradients: Numbers of the parameters' gradients, by name.
        ends: Numbers of losses, gradients, or the results of the last call.
        scale: The loss scale; 1 without one.
        lines: Texts of the lines of the callers, by file and number.
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
        number_of: Returns the number of a tensor.

    Raises:
        TypeError: If it cannot be written.
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
    raise TypeError(f"an operator was given a {type(value).__name__}")


def decode(value: Any, tensors: dict[int, torch.Tensor], device: str) -> Any:
    """Return the argument that `encode` wrote.

    Args:
        value: The value from `encode`.
        tensors: Tensors by number.
        device: Type of the device that the step runs on now.

    Raises:
        ValueError: If `encode` cannot have written it.
    """
    if isinstance(value, list):
        return [decode(each, tensors, device) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"{value} is no argument")
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
    raise ValueError(f"{value} is no argument")


def operator(name: str) -> Any:
    """Return an operator of torch's dispatcher by its name.

    Raises:
        ValueError: If there is none, or if a step must not call it.
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
