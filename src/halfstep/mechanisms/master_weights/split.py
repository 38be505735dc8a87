"""Split master weights: a bf16 parameter is the upper half of its fp32 value.

What the parameter lacks, the lower 16 bits of fp32 or the upper 8 of these, is kept beside it as a
signed integer. So the exact values take 4 bytes with the parameter, or 3, instead of 6 with fp32
copies. The parameter is the value rounded to nearest, ties away from zero. The idea is that of
FlashOptim (arXiv:2602.23349), there with 8 and 16 bits too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.formats.dtypes import HALVES
from halfstep.kernels.update.reference import exact, split
from halfstep.mechanisms.params.technique import own_tensors
from halfstep.mechanisms.technique import Stage, as_function, no_own_formats
from halfstep.mechanisms.update.technique import RoundedUpdate
from halfstep.optim.in_one_kernel import CORRECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from halfstep.mechanisms.technique import OwnFormats
    from halfstep.optim.in_one_kernel import Way


class SplitMasters(RoundedUpdate):
    """Keeps the bits that bf16 parameters lack of the values that the optimizer updates.

    Args:
        how: "split16" for exactly fp32, "split8" for 16 significant bits.
        own_formats: Returns the modules of a model that have a format of their own, with this
            format. Modules in fp32 lack nothing.
    """

    stage = Stage.MASTERS
    reshapes_params = True
    _field = "master_weights"

    def __init__(self, how: Way, *, own_formats: OwnFormats = no_own_formats) -> None:
        super().__init__(how)
        self._own_formats = own_formats
        self._dtype = CORRECTIONS[how]
        self._handles: list[RemovableHandle] = []

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Split the optimizers' parameters, before the models are cast to bf16."""
        super().prepare(models, optimizers)
        wanted = {param for model in models for param in model.parameters()}
        for model in models:
            own = own_tensors(self._own_formats(model)).items()
            wanted -= {tensor for tensor, dtype in own if dtype not in HALVES}
        for param in self._params():
            if param in wanted and param.is_floating_point():
                with torch.no_grad():
                    param.copy_(self._split(param, param.detach().float()))
        for module in (module for model in models for module in model.modules()):
            self._handles += [
                module.register_state_dict_post_hook(as_function(self._export)),
                module.register_load_state_dict_pre_hook(as_function(self._import)),
            ]

    def close(self) -> None:
        """Give the parameters, which are fp32 again, their exact values."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with torch.no_grad():
            for param, missing in self._compensations.items():
                param.copy_(exact(param.bfloat16(), missing.to(param.device)))
        self._compensations.clear()

    def _split(self, param: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Keep the missing bits of a parameter's exact value, and return the bf16 value."""
        upper, missing = split(value, self._dtype)
        self._compensations[param] = missing
        return upper

    def _named(self, module: nn.Module, prefix: str) -> list[tuple[str, torch.Tensor]]:
        own = module._parameters.items()  # noqa: SLF001  # tied ones too
        return [
            (prefix + name, param) for name, param in own if param in self._compensations
        ]  # a deep copy of a model calls these hooks too, with parameters that are not there

    def _export(self, module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, param in self._named(module, prefix):
            if name in state:
                state[name] = self.full_precision(param)

    def _import(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, param in self._named(module, prefix):
            value = state.get(name)
            if isinstance(value, torch.Tensor) and value.shape == param.shape:
                state[name] = self._split(param, value.detach().float().to(param.device))
