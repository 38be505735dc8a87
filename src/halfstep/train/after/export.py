"""Exports the model of a run in formats of other programs: safetensors, ONNX, torch.export.

Each file contains the validated weights in fp32, whatever the recipe, and the class names and
preprocessing as metadata. ONNX and torch.export files also contain a program, which takes batches
of any size. Its outputs are compared with the model's before the file is written.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import logging
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import safetensors.torch
import torch

from halfstep import caller
from halfstep.errors import UserError, reason
from halfstep.files import write_atomically
from halfstep.train.after.trained import open_run
from halfstep.train.store import links
from halfstep.versions import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn

    from halfstep.train.after.trained import Trained
    from halfstep.train.store.checkpoint import Which

Format = Literal["safetensors", "onnx", "torch"]

SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "onnx": ".onnx", "torch": ".pt2"}
INPUT, OUTPUT = "images", "logits"
_NEEDED_FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")
_TOLERANCE = 1e-3
"""Largest allowed difference of a logit, relative to the largest logit or 1 if that is smaller.

Some difference is normal, because fused kernels round differently.
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export.

    Attributes:
        file: Path of the written file.
        epoch: Epoch of the exported weights.
        difference: Largest difference between the logits of the program and of the model, on random
            images; None for safetensors, which contains no program.
    """

    file: Path
    epoch: int
    difference: float | None


def export(run: Path, kind: Format, *, which: Which = "best", file: Path | None = None) -> Exported:
    """Export the model of a run to `file`, by default to `export/<which>` in the run directory.

    Raises:
        UserError: If the run or its checkpoint cannot be read, if a package is missing, if the
            model cannot be exported, or if the file cannot be written.
    """
    if kind == "onnx":
        _require_onnx()
    trained = open_run(run, which)
    if file is None:
        links.refuse(run, [run / "export"])
        file = run / "export" / f"{which}{SUFFIXES[kind]}"
    facts = describe(trained)
    difference: float | None = None
    content: bytes | Callable[[BinaryIO], object]
    if kind == "safetensors":
        content = _safetensors(trained.model, facts)
    else:
        write = _onnx if kind == "onnx" else _torch
        try:
            with _quietly():
                content, difference = write(trained, facts)
        except UserError:
            raise
        except Exception as error:  # a tracer may raise anything
            raise UserError(
                f"{trained.config.model.name!r} cannot be exported as {kind}: {reason(error)}; "
                f"write {caller.setting(format='safetensors')} for the weights alone"
            ) from error
    try:
        write_atomically(file, content)
    except OSError as error:
        raise UserError(f"cannot write {str(file)!r}: {error.strerror or error}") from error
    return Exported(file, trained.stored.epoch, difference)


def describe(trained: Trained) -> dict[str, str]:
    """Return the metadata for an export: text by name, with structured values as JSON."""
    augment = getattr(trained.config.data, "augment", None)
    settings = augment.settings() if augment else None
    mean, std = trained.normalisation
    preprocessing = {
        "image_shape": trained.image_shape,
        "resize_shorter_edge": round(
            trained.image_shape[1] / (settings.val_crop if settings else 1.0)
        ),
        "interpolation": settings.interpolation if settings else "bilinear",
        "antialias": True,
        "mean": mean,
        "std": std,
    }
    return {
        "format": "pt",
        "halfstep": version("halfstep"),
        "model": json.dumps(
            {"name": trained.config.model.name, "args": trained.config.model.args}, default=str
        ),
        "classes": json.dumps(trained.classes),
        "preprocessing": json.dumps(preprocessing),
        "recipe": trained.config.build_recipe().name,
        "epoch": str(trained.stored.epoch),
        "accuracy": str(trained.stored.accuracy),
    }


def _safetensors(model: nn.Module, facts: dict[str, str]) -> bytes:
    # Cloned, since the format refuses tensors that share memory, as tied weights do.
    tensors = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).contiguous().clone()
        for name, tensor in model.state_dict().items()
    }
    return safetensors.torch.save(tensors, facts)


def _torch(trained: Trained, facts: dict[str, str]) -> tuple[Callable[[BinaryIO], object], float]:
    program = torch.export.export(
        trained.model, (_images(trained, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    difference = _compare(trained, program.module())
    extra = {f"{name}.txt": text for name, text in facts.items()}
    return functools.partial(torch.export.save, program, extra_files=extra), difference


def _onnx(trained: Trained, facts: dict[str, str]) -> tuple[bytes, float]:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    program = torch.onnx.export(
        trained.model,
        (_images(trained, 2),),
        dynamo=True,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(facts)
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def logits(images: torch.Tensor) -> torch.Tensor:
        (outputs,) = session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(outputs)

    return content, _compare(trained, logits)


def _images(trained: Trained, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, *trained.image_shape, generator=generator)


@torch.no_grad()
def _compare(trained: Trained, program: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Return the largest difference of a program's logits from the model's.

    The batches have other sizes than the batch with which the program was traced.
    """
    difference = 0.0
    for count in (1, 3):
        images = _images(trained, count)
        wanted, given = trained.model(images), program(images)
        if given.shape != wanted.shape:
            raise UserError(
                f"the exported program gives {tuple(given.shape)} for {count} images, the model "
                f"{tuple(wanted.shape)}; write {caller.setting(format='safetensors')} for the "
                "weights alone"
            )
        difference = max(difference, float((given - wanted).abs().max()))
        if not difference <= _TOLERANCE * max(1.0, float(wanted.abs().max())):
            raise UserError(
                f"the exported program's logits differ from the model's by {difference:g}; "
                f"write {caller.setting(format='safetensors')} for the weights alone"
            )
    return difference


def _require_onnx() -> None:
    missing = [name for name in _NEEDED_FOR_ONNX if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{caller.setting(format='onnx')} needs the package {missing[0]}, which is not "
            f"installed; write pip install 'halfstep[onnx]', or {caller.setting(format='torch')}"
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the tracers' warnings and log messages, which do not concern the user."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.onnx", "onnxscript")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
