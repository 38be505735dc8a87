"""What a device does with a recipe: in units of its own, rehearsed, or not at all.

Rehearsed is what computes the numbers of a format without its units. Its speed says nothing, and
tables mark it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from halfstep.formats import torch_dtype
from halfstep.kernels.cpu_half import is_native
from halfstep.kernels.products import ON

if TYPE_CHECKING:
    from halfstep.recipe import HalfFormat, Recipe

How = Literal["native", "rehearsed", "refused"]

# First compute capability with units for a format (CUDA C programming guide, table 25).
_UNITS: dict[str, tuple[int, int]] = {"fp16": (5, 3), "bf16": (8, 0), "tf32": (8, 0)}


@dataclass(frozen=True, slots=True)
class Part:
    """What becomes of one field of a recipe.

    Attributes:
        field: The field, with its value: "autocast fp16".
        how: Native, rehearsed or refused.
        reason: Why, in a few words.
    """

    field: str
    how: How
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.how} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a device really does under a recipe.

    Attributes:
        recipe: The recipe's name.
        device: The device: "cpu", "cuda:0".
        parts: One for each field that asks something of the hardware.
    """

    recipe: str
    device: str
    parts: tuple[Part, ...]

    @property
    def how(self) -> How:
        """Refused if any part is, else rehearsed if any part is, else native."""
        found = {part.how for part in self.parts}
        return next((how for how in ("refused", "rehearsed") if how in found), "native")

    def those(self, how: How) -> list[str]:
        """Return the parts of one kind, as they are printed."""
        return [str(part) for part in self.parts if part.how == how]

    def __str__(self) -> str:
        said = "; ".join(map(str, self.parts)) or "asks nothing of the hardware"
        return f"{self.recipe} on {self.device}: {said}"


def resolve(recipe: Recipe, device: str | torch.device) -> Resolution:
    """Say what `device` does with each field of `recipe` that needs units of its own.

    Raises:
        ValueError: If there is no such device on this machine.
    """
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; allowed: cpu, cuda, cuda:1") from error
    parts = []
    half = recipe.half_params
    if half:
        parts.append(_half(f"params {half}", half, where))
    if recipe.autocast:
        parts.append(_half(f"autocast {recipe.autocast}", recipe.autocast, where))
    if recipe.matmul == "tf32":
        parts.append(_tf32(where))
    if recipe.float8:
        reason = "fp32 kernels on fp8 values; layers whose widths are no multiple of 16 stay out"
        parts.append(Part(f"float8 {recipe.float8}", "rehearsed", reason))
    if recipe.accumulation:
        parts.append(_accumulation(where))
    return Resolution(recipe.name, str(where), tuple(parts))


def has_tf32(device: torch.device) -> bool:
    """Tell whether a device has TF32 tensor cores."""
    return device.type == "cuda" and _capability(device) >= _UNITS["tf32"]


def _half(field: str, format_: HalfFormat, device: torch.device) -> Part:
    if device.type == "cpu":
        if is_native(torch_dtype(format_)):
            return Part(field, "native", f"this processor has {format_} units")
        reason = f"no {format_} units: {format_} tensors, fp32 kernels, one rounding"
        return Part(field, "rehearsed", reason)
    if device.type != "cuda":
        return Part(field, "native", f"as PyTorch computes {format_} on {device.type}")
    return _by_capability(field, format_, device, "PyTorch computes it through fp32")


def _tf32(device: torch.device) -> Part:
    field = "matmul tf32"
    if device.type == "cuda":
        return _by_capability(field, "tf32", device, "inputs are rounded, fp32 kernels")
    if device.type in ON:
        return Part(field, "rehearsed", "no tf32 units: inputs are rounded, fp32 kernels")
    return _refused(field, device)


def _accumulation(device: torch.device) -> Part:
    field = "accumulation fp16"
    if device.type in ON:
        return Part(field, "rehearsed", "sums of 16 products, each added to an fp16 accumulator")
    return _refused(field, device)


def _refused(field: str, device: torch.device) -> Part:
    return Part(field, "refused", f"no rehearsal on {device.type}; use cpu or cuda")


def _by_capability(field: str, format_: str, device: torch.device, otherwise: str) -> Part:
    found = _capability(device)
    said = f"compute capability {found[0]}.{found[1]}"
    if found >= _UNITS[format_]:
        return Part(field, "native", said)
    return Part(field, "rehearsed", f"{said} has no {format_} units: {otherwise}")


def _capability(device: torch.device) -> tuple[int, int]:
    try:
        return torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device is {str(device)!r}, but no such GPU is here; write cpu"
        ) from error
