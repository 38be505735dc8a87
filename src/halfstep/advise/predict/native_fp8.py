"""Tells which layers of a subject are faster in FP8 on a GPU, and where FP8 is not predicted."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from halfstep.advise.predict.step import fake_forward
from halfstep.plurals import counted
from halfstep.recipe import recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.subject import Subject


def lines(subject: Subject, gpus: Sequence[Gpu], batch: int | None = None) -> list[str]:
    """Return how many layers gain from native products, for each GPU of the table of gains.

    Args:
        subject: The subject; it is not modified.
        gpus: The GPUs.
        batch: Samples of a micro-step; by default as many as in the subject's first batch.

    Raises:
        UserError: If the model cannot run on tensors without values.
    """
    with_units = [gpu for gpu in gpus if gpu.fp8 is not None]
    counts = samples_of_layers(subject, batch) if with_units else {}
    found: dict[str, list[str]] = {}
    for gpu in with_units:
        with suppress(ValueError):  # the table does not have the GPU
            found.setdefault(_line(subject.model, counts, gpu), []).append(gpu.name)
    return [f"fp8 on {', '.join(names)}: {said}" for said, names in found.items()]


def not_predicted(names: Sequence[str], gpus: Sequence[Gpu]) -> list[str]:
    """Return a line for each reason for which recipes are not predicted on some of the GPUs."""
    found: dict[str, list[str]] = {}
    for name in names:
        for gpu in gpus:
            if reason := recipe(name).untraceable_on(gpu):
                found.setdefault(reason, []).append(f"{name} on {gpu.name}")
    return [f"not predicted: {', '.join(which)}: {reason}" for reason, which in found.items()]


def samples_of_layers(subject: Subject, batch: int | None = None) -> dict[str, int]:
    """Return the tokens or pixels of a batch in each linear and convolution layer, by its name."""
    found: dict[str, int] = {}
    names = {layer.name for layer in recipe("fp8").explained(subject.model, "cpu")}

    def count(name: str, layer: nn.Module, given: tuple[Any, ...], _: Any) -> None:
        width = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
        assert isinstance(width, int)
        found[name] = given[0].numel() // width

    def watch(model: nn.Module) -> None:
        for name, layer in model.named_modules():
            if name in names:
                layer.register_forward_hook(partial(count, name))

    fake_forward(subject, batch, watch)
    return found


def _line(model: nn.Module, counts: dict[str, int], gpu: Gpu) -> str:
    layers = recipe("fp8").explained(model, gpu.key, counts)
    faster = [each for each in layers if each.computes == "native" and each.gain is not None]
    said = f"{len(faster)} of {counted(len(layers), 'layer')} would multiply in FP8"
    if not faster:
        return f"{said}, because none is predicted to be faster in FP8 than in bf16"
    gains = dict.fromkeys(f"{gain:.2f}" for gain in sorted(each.gain or 0 for each in faster))
    lowest, *_, highest = [*gains, *gains]
    most = f" to {highest}" if highest != lowest else ""
    sources = " and ".join(dict.fromkeys(str(each.source) for each in faster))
    return f"{said}, {lowest}{most} times as fast as in bf16 ({sources})"
