"""Builds a timm or torchvision classifier by name, or the user's own, to fit the data.

A name is looked up in timm, then in torchvision, then here, unless it has a prefix:
`torchvision:alexnet`.
`weights.py` loads the initial weights; `freeze.py` freezes parts of the model.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import timm
import torch
import torchvision
from torch import nn

from halfstep import caller
from halfstep.errors import UserError, closest, failing, reason
from halfstep.train.build import weights
from halfstep.train.build.freeze import freeze
from halfstep.train.build.resnet9 import ResNet9
from halfstep.train.config import import_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.train.config.model import ModelConfig

_LIBRARIES = ("timm", "torchvision", "halfstep")
_OWN = {"resnet9": ResNet9}
# Exceptions that the constructors and forward passes of models raise if sizes do not fit.
_REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
)


def build(
    config: ModelConfig,
    *,
    classes: int,
    image_shape: tuple[int, int, int],
    initial_weights: bool = True,
) -> nn.Module:
    """Return the classifier that a config names, on the CPU in fp32.

    Args:
        config: The config section `model`.
        classes: Number of logits.
        image_shape: Channels, height and width of the images; a forward pass on one zero image
            checks the model.
        initial_weights: Whether to load the pretrained weights or the file that the config names;
            False if the caller loads those of a checkpoint later.

    Raises:
        UserError: If there is no such model, if it refuses its arguments, if it cannot take images
            of this shape, if its weights are not available or do not fit, or if a name to freeze
            is wrong.
    """
    pretrained = config.pretrained and initial_weights
    if config.name.startswith("import:"):
        model = _imported(config, classes, image_shape[0])
    else:
        model = _of_a_library(config, classes, image_shape[0], pretrained=pretrained)
    if getattr(model, "aux_logits", False):
        raise UserError(
            f"model.name is {config.name!r}, which returns auxiliary logits too; "
            f"write {caller.fields({'model.args.aux_logits': False})}"
        )
    _try_on(model, config.name, image_shape, classes)
    if config.weights is not None and initial_weights:
        source = f"model.weights {config.weights!r}"
        weights.fit(model, weights.read(config.weights), classes=classes, source=source)
    freeze(model, config.freeze)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


def load(model: nn.Module, weights: Mapping[str, torch.Tensor], otherwise: str) -> None:
    """Load all weights of a checkpoint into a model; `otherwise` starts the error message."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{otherwise}: {reason(error)}") from error


def compiled(model: nn.Module) -> nn.Module:
    """Compile a model in place, so that it remains the module that the engine owns.

    A model that is kept from an earlier run is compiled already.
    """
    if model._compiled_call_impl is None:  # noqa: SLF001  (torch has no public name for it)
        model.compile()
    return model


def _of_a_library(
    config: ModelConfig, classes: int, channels: int, *, pretrained: bool
) -> nn.Module:
    """Return a classifier of timm or torchvision, with its published weights if `pretrained`."""
    library, name = resolve(config.name)
    given = {"num_classes": classes, **config.args}
    with warnings.catch_warnings():
        # A layer without channels is refused below, with an error of one line.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        try:
            if library == "timm":
                model: nn.Module = timm.create_model(name, in_chans=channels, **given)
            elif library == "halfstep":
                model = _OWN[name](in_chans=channels, **given)
            else:
                model = _take_channels(torchvision.models.get_model(name, **given), channels)
        except _REFUSALS as error:
            raise UserError(
                f"model.args is {config.args}, which {library}'s {name} refuses: {reason(error)}"
            ) from error
        if not pretrained:
            return model
        if library == "halfstep":
            raise UserError(
                f"model.pretrained is true, but {config.name} has no published weights; write "
                f"{caller.fields({'model.pretrained': False})}"
            )
        return _with_published(model, library, name, channels, given)


def _with_published(
    model: nn.Module, library: str, name: str, channels: int, given: dict[str, Any]
) -> nn.Module:
    """Return a model with the weights that its library publishes for it."""
    classes = given["num_classes"]
    try:
        if library == "timm":
            model = timm.create_model(name, pretrained=True, in_chans=channels, **given)
        else:
            choices = torchvision.models.get_model_weights(name)
            state = choices.DEFAULT.get_state_dict(check_hash=True)
    except Exception as error:  # network, proxy, hash, disk and hub raise different exceptions
        raise UserError(
            f"model.pretrained is true, but {library} cannot provide weights of {name!r}: "
            f"{reason(error)}; write "
            f"{caller.fields({'model.pretrained': False, 'model.weights': 'FILE'})} with a "
            ".safetensors or .pth file of them"
        ) from error
    if library == "torchvision":
        # Auxiliary heads are not used.
        used = {key: value for key, value in state.items() if not key.lower().startswith("aux")}
        weights.fit(model, used, classes=classes, source=f"{name}'s weights")
        return model
    published: Any = model.pretrained_cfg
    theirs = published.get("num_classes")
    if theirs not in {None, classes}:
        weights.note(
            f"{name}'s weights are of {theirs} classes: its last layer is initialized randomly, "
            f"for {classes} classes"
        )
    return model


def _imported(config: ModelConfig, classes: int, channels: int) -> nn.Module:
    function = import_path.load(config.name, "model.name")
    arguments = f"num_classes={classes}, in_chans={channels} and model.args {config.args}"
    with failing(f"{config.name} called with {arguments} failed"):
        model = function(**{"num_classes": classes, "in_chans": channels, **config.args})
    if not isinstance(model, nn.Module):
        raise UserError(f"{config.name} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def resolve(name: str) -> tuple[str, str]:
    """Return the library of a model and its name there, for a name in a config.

    Raises:
        UserError: If no library has such a model; the message has the closest name.
    """
    prefix, _, rest = name.rpartition(":")
    if prefix and prefix not in _LIBRARIES:
        raise UserError(
            f"model.name is {name!r}; allowed prefixes: {', '.join(_LIBRARIES)}, import; "
            f"write timm:{rest}"
        )
    for library in [prefix] if prefix else _LIBRARIES:
        # Not `_names` for timm, because `is_model` also accepts names with a tag.
        if timm.is_model(rest) if library == "timm" else rest in _names(library):
            return library, rest
    searched = [prefix] if prefix else _LIBRARIES
    known = [model for library in searched for model in _names(library)]
    raise UserError(
        f"model.name is {name!r}; allowed: a classifier of {' or '.join(searched)}"
        f"{closest(rest, known)}"
    )


def _names(library: str) -> list[str]:
    if library == "timm":
        return list(timm.list_models())
    if library == "halfstep":
        return list(_OWN)
    return list(torchvision.models.list_models(module=torchvision.models))


def _take_channels(model: nn.Module, channels: int) -> nn.Module:
    """Replace the RGB convolution of a torchvision model by one with `channels` input channels."""
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
            # Keep the model's own initialisation, repeated or cut, instead of Conv2d's default.
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
            f"model.name is {name!r}, which cannot take {shape} images: {reason(error)}; "
            f"write {caller.fields({'data.resolution': ...})} or "
            f"{caller.fields({'model.name': ...})}"
        ) from error
    finally:
        model.train(was_training)
    if not isinstance(logits, torch.Tensor) or logits.shape != (1, classes):
        raise UserError(
            f"model.name is {name!r}, which does not return {classes} logits per image; "
            "write the name of a classifier"
        )
