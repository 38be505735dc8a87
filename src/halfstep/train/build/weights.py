"""Loads initial weights: reads a file without running its code, and fits the weights to a model.

If the file is for another number of classes, the last layer keeps its random initial values. If a
wrapper (DDP, torch.compile, a Lightning module) has put a prefix before all names, the prefix is
removed. Both cases print a note. A first convolution for RGB images is adapted to another number of
input channels. Any other mismatch is an error, because training would silently start from wrong
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from safetensors.torch import load_file
from timm.models import adapt_input_conv

from halfstep.errors import UserError, reason
from halfstep.train.store.checkpoint import refuse_compressed

if TYPE_CHECKING:
    from torch import nn

_COUNTER = "num_batches_tracked"
"""Name of BatchNorm's counter of batches, which files of old versions of torch lack."""
# Keys under which a file may nest its state dict. "averaged" is first, because a run of halfstep is
# validated with these weights.
_WRAPPERS = ("averaged", "state_dict", "model_state_dict", "model")


def read(path: str) -> dict[str, torch.Tensor]:
    """Return the state dict in a .safetensors file or in a file of `torch.save`.

    The state dict may be nested under a key such as "state_dict" or "model".

    Raises:
        UserError: If there is no such file, or if it does not hold a state dict of tensors.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"model.weights is {path!r}, but there is no such file")
    try:
        if file.suffix == ".safetensors":
            content: Any = load_file(file)
        else:
            refuse_compressed(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no pickle raise anything in torch
        raise UserError(
            f"model.weights is {path!r}, which cannot be read as tensors alone: {reason(error)}"
        ) from error
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(
            isinstance(name, str) and isinstance(value, torch.Tensor)
            for name, value in content.items()
        )
    ):
        raise UserError(
            f"model.weights is {path!r}, which holds no state dict; "
            "write the file of torch.save(model.state_dict(), ...)"
        )
    return dict(content)


def fit(
    model: nn.Module, weights: Mapping[str, torch.Tensor], *, classes: int, source: str
) -> None:
    """Load weights into a model; note if the last layer stays random or if a prefix is removed.

    Args:
        model: The model, with its random initial values.
        weights: A state dict of the same architecture. It may be for another number of classes, or
            for three input channels if the model has another number, and all of its names may
            start with a prefix.
        classes: Number of logits of the model.
        source: Name of the weights in errors and notes.
    """
    state = model.state_dict()
    head = head_of(model, classes)
    weights = _without_prefix(weights, [n for n in state if _is_needed(n, head)], source)
    fitting: dict[str, torch.Tensor] = {}
    anew = sorted(name for name in state if name.rpartition(".")[0] in head and name not in weights)
    for name, tensor in weights.items():
        if name not in state:
            raise UserError(f"{source} holds {name!r}, which the model does not have")
        given, wanted = tuple(tensor.shape), tuple(state[name].shape)
        if given != wanted and len(wanted) == 4 and given == (wanted[0], 3, *wanted[2:]):
            tensor = adapt_input_conv(wanted[1], tensor)  # noqa: PLW2901  (adapted to other input channels)
            given = wanted
        if given == wanted:
            fitting[name] = tensor
        elif name.rpartition(".")[0] in head:
            anew.append(name)
        else:
            raise UserError(f"{source}: {name!r} is of shape {given}, and the model's of {wanted}")
    missing = [
        name
        for name in state
        if name not in weights and name not in anew and not name.endswith(_COUNTER)
    ]
    if missing:
        raise UserError(f"{source} has no {missing[0]!r}, which the model needs")
    model.load_state_dict(fitting, strict=False)
    if anew:
        note(
            f"{source}: the last layer ({', '.join(anew)}) is initialized randomly, for {classes} "
            "classes"
        )


def _without_prefix(
    weights: Mapping[str, torch.Tensor], needed: Sequence[str], source: str
) -> Mapping[str, torch.Tensor]:
    """Return the weights under the model's names; print a note if a prefix is removed."""
    if not needed or needed[0] in weights:
        return weights
    ends_alike = [name for name in weights if name.endswith(f".{needed[0]}")]
    prefixes = [
        prefix
        for prefix in (name.removesuffix(needed[0]) for name in ends_alike)
        if all(f"{prefix}{name}" in weights for name in needed)
    ]
    if not prefixes:
        return weights
    if len(prefixes) > 1:
        several = ", ".join(map(repr, prefixes))
        raise UserError(
            f"{source} holds several such models, whose names start with {several}; write a file "
            "of the state dict of one of them"
        )
    (prefix,) = prefixes
    note(f"{source}: the prefix {prefix!r} is removed from its names")
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def head_of(model: nn.Module, classes: int) -> tuple[str, ...]:
    """Return the names of the layers that compute the logits; empty if they are not known.

    timm's models name them. In other models it is the last layer with `classes` outputs.
    """
    named = getattr(model, "pretrained_cfg", {}).get("classifier")
    if named:
        return (named,) if isinstance(named, str) else tuple(named)
    last = [
        name
        for name, module in model.named_modules()
        if isinstance(weight := getattr(module, "weight", None), torch.Tensor)
        and weight.ndim >= 2
        and len(weight) == classes
    ]
    return tuple(last[-1:])


def note(line: str) -> None:
    """Print a note for the user to stderr, because programs may read stdout."""
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


def _is_needed(name: str, head: Sequence[str]) -> bool:
    return name.rpartition(".")[0] not in head and not name.endswith(_COUNTER)
