"""Exceptions: modules and operators that compute in another format than the rest of the model.

With half parameters, `ParameterFormat` keeps the parameters of an fp32 module in fp32. Under
autocast, such a module runs in an autocast region of its own. Calls of operators are intercepted in
Python, above autograd, so that forward and backward have the same format.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import get_overridable_functions

from halfstep.errors import closest
from halfstep.formats import torch_dtype
from halfstep.layers.swap import mix_in, take_out
from halfstep.mechanisms.exceptions.interception import (
    Intercepted,
    is_intercepted,
    narrowed,
    operator_name,
)
from halfstep.mechanisms.params.technique import cast_floating, format_changes
from halfstep.mechanisms.technique import Stage, Technique, device_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from halfstep.mechanisms.technique import OwnFormats

OPERATOR = "op:"
"""The prefix of a pattern that names an operator, wherever it is called."""
UNLISTED = frozenset(["hardsigmoid", "hardswish"])
"""Functions that can be intercepted although `get_overridable_functions` does not list them."""


class FormatExceptions(Technique):
    """Makes modules and operators compute in a format of their own.

    Args:
        exceptions: The format for each pattern, in order from the least to the most specific.
        half_params: The format of the model's parameters if it is a half format, else None.
        own_formats: Returns the modules of a model that the patterns match, with their formats.

    Raises:
        ValueError: In `prepare`, if a pattern matches nothing.
    """

    stage = Stage.WITHIN_FORWARD
    replaces_layers = True

    def __init__(
        self, exceptions: Mapping[str, str], *, half_params: str | None, own_formats: OwnFormats
    ) -> None:
        self._exceptions = exceptions
        self._half_params = half_params
        self._own_formats = own_formats
        self._everywhere = _operators(
            (pattern.removeprefix(OPERATOR), format_)
            for pattern, format_ in exceptions.items()
            if pattern.startswith(OPERATOR)
        )
        self._layers: list[nn.Module] = []
        self._handles: list[RemovableHandle] = []
        self._patched: dict[nn.Module, Callable[..., Any]] = {}

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Make every matching module run its forward in its `Region`."""
        del optimizers
        for pattern, format_ in self._exceptions.items():
            self._refuse_unknown(pattern, format_, models)
        device_type = next(iter(device_types(models)), "cpu")
        for model in models:
            if self._everywhere and self._half_params is not None:
                # `prepend`, because another hook casts the outputs to the requested format, and
                # must run after this one.
                self._handles.append(model.register_forward_hook(_narrows, prepend=True))
            regions = self._regions(model, device_type)
            for layer, region in regions.items():
                mix_in(layer, _Excepted)
                layer._exception = region  # type: ignore[assignment]  # noqa: SLF001  # the mixin's
                self._layers.append(layer)
                patched = vars(layer).get("forward")
                if patched is not None:  # an instance attribute hides the mixin's forward
                    self._patched[layer] = patched
                    layer.forward = partial(_in_region, region, patched)

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context that intercepts the operators named by "op:" patterns."""
        return Intercepted(self._everywhere, device.type) if self._everywhere else nullcontext()

    def close(self) -> None:
        """Restore the class and the `forward` of each changed module."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for layer in self._layers:
            take_out(layer)
            del layer._exception  # noqa: SLF001
        self._layers.clear()
        for layer, forward in self._patched.items():
            layer.forward = forward
        self._patched.clear()

    def _regions(self, model: nn.Module, device_type: str) -> dict[nn.Module, Region]:
        regions: dict[nn.Module, Region] = {}
        if self._half_params is None:
            for module, inside, _ in format_changes(model, self._own_formats(model), None):
                regions[module] = Region(device_type, inside)
        for pattern, format_ in self._exceptions.items():
            for module, operator in calling(model, pattern):
                region = regions.setdefault(module, Region(device_type, None))
                region.operators[operator] = torch_dtype(format_)
        return regions

    def _refuse_unknown(self, pattern: str, format_: str, models: Sequence[nn.Module]) -> None:
        if pattern.startswith(OPERATOR):
            return
        modules = any(matching(model, pattern) for model in models)
        if not modules and not any(calling(model, pattern) for model in models):
            names = [name for model in models for name, _ in model.named_modules() if name]
            whole = pattern.removesuffix(".*")
            itself = f"; {whole!r} is the module itself"
            hint = itself if whole in names else closest(pattern, names)
            raise ValueError(
                f"exceptions names {pattern!r}, which matches no module; allowed: "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}{hint}"
            )
        if modules and self._half_params not in (None, format_) and format_ != "fp32":
            raise ValueError(
                f"exceptions gives module {pattern!r} the format {format_!r}, but the parameters "
                f"of the model are {self._half_params!r}; allowed: 'fp32' or {self._half_params!r}"
            )


def matching(model: nn.Module, pattern: str) -> list[nn.Module]:
    """Return the modules of `model` whose names match `pattern`, a name or shell-style pattern."""
    return [module for name, module in model.named_modules() if name and fnmatchcase(name, pattern)]


def calling(model: nn.Module, pattern: str) -> list[tuple[nn.Module, str]]:
    """Return the modules that match "MODULES" in the pattern "MODULES.OPERATOR", and the operator.

    The list is empty if the last word is no known operator, or if `pattern` matches modules itself.
    """
    modules, _, operator = pattern.rpartition(".")
    if not modules or operator not in known_operators() or matching(model, pattern):
        return []
    return [(module, operator) for module in matching(model, modules)]


@cache
def known_operators() -> frozenset[str]:
    """Return the names of the operators that can be intercepted: torch functions and methods."""
    functions = get_overridable_functions().values()
    return UNLISTED.union(operator_name(function) for group in functions for function in group)


def _operators(given: Iterator[tuple[str, str]]) -> dict[str, torch.dtype]:
    found = {}
    for name, format_ in given:
        if name not in known_operators():
            raise ValueError(
                f"exceptions names operator {name!r}, which torch does not have; allowed: a "
                "function of "
                f"torch or torch.nn.functional, such as 'op:softmax'"
                f"{closest(name, known_operators())}"
            )
        found[name] = torch_dtype(format_)
    return found


@dataclass(slots=True)
class Region:
    """The formats that apply while a module runs.

    Attributes:
        device_type: Device type for autocast. It is stored here because modules without parameters,
            and replicas of DataParallel, do not show their device.
        inside: Format of the module; None for the format of the surrounding code.
        operators: Format of each operator that has its own.
    """

    device_type: str
    inside: str | None
    operators: dict[str, torch.dtype] = field(default_factory=dict)


class _Excepted(nn.Module):
    _exception: Region

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of the module's original class in its region."""
        return _in_region(self._exception, super().forward, *args, **kwargs)


def _in_region(region: Region, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with ExitStack() as stack:
        if region.inside is not None:
            args, kwargs = _enter(stack, region.inside, region.device_type, args, kwargs)
        if region.operators:
            stack.enter_context(Intercepted(region.operators, region.device_type))
        result = forward(*args, **kwargs)
    return narrowed(result) if region.operators and not is_intercepted() else result


def _enter(
    stack: ExitStack, inside: str, device: str, args: Any, kwargs: Any
) -> tuple[Any, dict[str, Any]]:
    """Enter an autocast region of format `inside`, and return the inputs for it.

    An fp32 region gets inputs cast to fp32; a half region gets the inputs unchanged. The cache of
    autocast has the weight as its key, but not the format of the cast. So a half region, whose
    format may differ from that of the surrounding code, does not use the cache.
    """
    if inside == "fp32":
        stack.enter_context(torch.autocast(device, enabled=False))
        return cast_floating(args, torch.float32), cast_floating(kwargs, torch.float32)
    stack.enter_context(torch.autocast(device, dtype=torch_dtype(inside), cache_enabled=False))
    return args, kwargs


def _narrows(_: nn.Module, __: Any, output: Any) -> Any:
    return narrowed(output)
