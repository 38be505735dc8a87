"""torchao's Adam with moments of 8 or 4 bits per element, changed so that halfstep can save it.

torchao stores moments as tensor subclasses. A checkpoint that loads without running code cannot
contain them, so the state dict here consists of plain tensors. torchao's step uses `torch.compile`,
which on a CPU takes minutes for the many shapes of a network, so on a CPU the step runs eagerly.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS = {
    "adam8bit": "Adam8bit",
    "adamw8bit": "AdamW8bit",
    "adam4bit": "Adam4bit",
    "adamw4bit": "AdamW4bit",
    "adamfp8": "AdamFp8",
    "adamwfp8": "AdamWFp8",
}
"""The name of each optimizer in halfstep, and the name of its class in torchao."""

_CONSTANT = "qmap"  # the table of values that the codes represent: the same for every tensor
_FORMATS = (torch.float32, torch.float16, torch.bfloat16)


@cache
def low_bit_adam(name: str) -> type[Optimizer]:
    """Return the class of an optimizer with 8-bit or 4-bit moments.

    Args:
        name: A key of `KINDS`.

    Raises:
        ImportError: If torchao is not installed.
    """
    # The import of torchao registers a constant in a way that torch warns about.
    log = logging.getLogger("torch.utils._pytree")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        import torchao.optim
    finally:
        log.setLevel(level)
    theirs = KINDS[name]
    return type(theirs, (_PlainState, getattr(torchao.optim, theirs)), {})


class _PlainState(Optimizer):
    """Mixin for a class of torchao: plain tensors in state dicts, no compiler on a CPU.

    Raises:
        TypeError: If a parameter is neither fp32 nor half, or is a DTensor.
    """

    computes_in_fp32 = True

    def _new_buffer(self, param: torch.Tensor, signed: bool) -> torch.Tensor:
        """Return a zero moment; in fp32 if it is not quantised.

        torchao would keep it in the format of the parameter. In fp16, squared gradients below
        3e-8 would become 0.
        """
        moment: torch.Tensor = super()._new_buffer(param, signed)  # type: ignore[misc]  # torchao's
        return moment if _inner(moment) else moment.float()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; refuse those whose step or saved state would be wrong."""
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            if param.dtype not in _FORMATS:
                raise TypeError(
                    f"{type(self).__name__} computes in fp32, and a parameter of shape "
                    f"{list(param.shape)} is {param.dtype}; write adam or adamw"
                )
            if hasattr(param, "to_local"):
                raise TypeError(
                    f"the state of {type(self).__name__} cannot be saved where processes share a "
                    "model; write adam or adamw with state: bf16"
                )

    def step(  # type: ignore[override]  # torch's overloads say the same in two signatures
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Take one step.

        Args:
            closure: Evaluates the loss again and returns it.
        """
        # Schedulers and state dicts set a plain number, but torchao needs a tensor.
        for group in self.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32)
        params = (param for group in self.param_groups for param in group["params"])
        on_cpu = any(param.device.type == "cpu" for param in params)
        with torch.compiler.set_stance("force_eager") if on_cpu else nullcontext():
            return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict, in which each 8-bit or 4-bit moment is a dict of its tensors."""
        saved = super().state_dict()
        saved["state"] = {
            name: {key: _plain(value) for key, value in state.items()}
            for name, state in saved["state"].items()
        }
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`.

        Raises:
            ValueError: If a moment was saved with another number of bits.
        """
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for name, param in zip(names, params, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                self.state[param][key] = self._taken_over(param, key, value)

    def _taken_over(self, param: torch.Tensor, key: str, value: Any) -> torch.Tensor:
        if isinstance(value, dict):
            signed = key == "exp_avg"
            moment = self._new_buffer(param, signed)
            if value.keys() != _inner(moment).keys():
                raise ValueError(f"{key} is not a moment that {type(self).__name__} has saved")
            for name, room in _inner(moment).items():
                if value[name].shape != room.shape or value[name].dtype != room.dtype:
                    raise ValueError(f"{key} is of other bits than {type(self).__name__} keeps")
                room.copy_(value[name])
            return moment
        tensor: torch.Tensor = value.detach().clone()
        return tensor if key == "step" else tensor.to(param.device, torch.float32)


def _plain(value: Any) -> Any:
    """Return a dict of the tensors of a low-bit moment; return any other value unchanged."""
    return _inner(value) or value


def _inner(moment: Any) -> dict[str, torch.Tensor]:
    names: Iterable[str] = getattr(moment, "tensor_attrs", ())
    return {name: getattr(moment, name) for name in names if name != _CONSTANT}
