"""Any timm or torchvision classifier by name, shaped to the data.

A name is looked up in timm, then in torchvision, unless it has a prefix: `torchvision:alexnet`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import timm
import torch
import torchvision
from torch import nn

from halfstep.errors import UserError, closest

if TYPE_CHECKING:
    from halfstep.train.config import ModelConfig

_LIBRARIES = ("timm", "torchvision")
# What constructors and forward passes of a thousand models raise when sizes do not fit.
_REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
)


def build(config: ModelConfig, *, classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
    """Return the classifier that a config names, on the CPU in fp32.

    Args:
        config: Its name and further arguments of its constructor.
        classes: Number of logits.
        image_shape: Channels, height and width of the images; the model is tried on one.

    Raises:
        UserError: If there is no such model, if it refuses its arguments, or if it cannot take
            images of this shape.
    """
    library, name = resolve(config.name)
    channels = image_shape[0]
    given = {"num_classes": classes, **config.args}
    try:
        if library == "timm":
            model: nn.Module = timm.create_model(name, in_chans=channels, **given)
        else:
            model = _take_channels(torchvision.models.get_model(name, **given), channels)
    except _REFUSALS as error:
        raise UserError(
            f"model.args is {config.args}, which {library}'s {name} refuses: {_line(error)}"
        ) from error
    if getattr(model, "aux_logits", False):
        raise UserError(
            f"model.name is {config.name!r}, which returns auxiliary logits too; "
            "write --options model.args.aux_logits=false"
        )
    _try_on(model, config.name, image_shape, classes)
    return model


def resolve(name: str) -> tuple[str, str]:
    """Return the library and the name in it for a model's name as configs write it.

    Raises:
        UserError: If no library has it; the closest name is given.
    """
    prefix, _, rest = name.rpartition(":")
    if prefix and prefix not in _LIBRARIES:
        raise UserError(
            f"model.name is {name!r}; allowed prefixes: {', '.join(_LIBRARIES)}; write timm:{rest}"
        )
    for library in [prefix] if prefix else _LIBRARIES:
        if _has(library, rest):
            return library, rest
    searched = [prefix] if prefix else _LIBRARIES
    known = [model for library in searched for model in _names(library)]
    raise UserError(
        f"model.name is {name!r}; allowed: a classifier of {' or '.join(searched)}"
        f"{closest(rest, known)}"
    )


def _has(library: str, name: str) -> bool:
    if library == "timm":
        return bool(timm.is_model(name))
    return name in _names("torchvision")


def _names(library: str) -> list[str]:
    if library == "timm":
        return list(timm.list_models())
    return list(torchvision.models.list_models(module=torchvision.models))


def _take_channels(model: nn.Module, channels: int) -> nn.Module:
    """Give a torchvision model, whose first convolution takes RGB, another number of channels."""
    if channels == 3:
        return model
    for path, old in model.named_modules():
        if isinstance(old, nn.Conv2d) and old.in_channels == 3:
            new = nn.Conv2d(
                channels,
                old.out_channels,
                (old.kernel_size[0], old.kernel_size[1]),
                (old.stride[0], old.stride[1]),
                old.padding if isinstance(old.padding, str) else (old.padding[0], old.padding[1]),
                bias=old.bias is not None,
            )
            # The model's own initialisation, cut or repeated, rather than Conv2d's default.
            repeats = -(-channels // 3)
            weight = old.weight.detach().repeat(1, repeats, 1, 1)[:, :channels]
            new.load_state_dict(old.state_dict() | {"weight": weight})
            model.set_submodule(path, new)
            return model
    raise UserError(
        f"{type(model).__name__} has no convolution over RGB to turn to {channels} channels"
    )


def _try_on(model: nn.Module, name: str, image_shape: tuple[int, int, int], classes: int) -> None:
    shape = "x".join(str(size) for size in image_shape)
    was_training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, *image_shape))
    except _REFUSALS as error:
        raise UserError(
            f"model.name is {name!r}, which cannot take {shape} images: {_line(error)}; "
            "write another --options data.resolution=... or model.name=..."
        ) from error
    finally:
        model.train(was_training)
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, classes):
        raise UserError(
            f"model.name is {name!r}, which does not return {classes} logits an image; "
            "write the name of a classifier"
        )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
