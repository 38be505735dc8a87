"""Freezes parts of a model: their parameters, and the statistics of their norm layers.

With `requires_grad=False` alone, BatchNorm would still normalise by the statistics of the batch and
update its running statistics, so that a frozen part would change. Frozen norm layers therefore stay
in eval mode, even after `model.train()`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from types import MethodType
from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _NormBase

from halfstep.errors import UserError, closest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the modules and parameters that the patterns match, in place.

    Args:
        model: The model.
        patterns: Names of modules (with their submodules) or parameters, with the wildcards
            * ? [...].
    """
    modules = dict(model.named_modules())
    params = dict(model.named_parameters())
    for pattern in patterns:
        frozen = [modules[name] for name in modules if name and fnmatchcase(name, pattern)]
        single = [params[name] for name in params if fnmatchcase(name, pattern)]
        if not frozen and not single:
            known = [name for name in (*modules, *params) if name]
            raise UserError(
                f"model.freeze holds {pattern!r}, which names no module or parameter"
                f"{closest(pattern, known)}; the outermost: "
                f"{', '.join(name for name, _ in model.named_children())}"
            )
        for param in (
            *single,
            *(parameter for module in frozen for parameter in module.parameters()),
        ):
            param.requires_grad_(requires_grad=False)
        for module in frozen:
            _stand_still(module)


def _stand_still(part: nn.Module) -> None:
    for module in part.modules():
        if isinstance(module, _NormBase):
            module.eval()
            module.train = MethodType(_stay, module)  # type: ignore[method-assign]  # this one only


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    del mode
    return module
