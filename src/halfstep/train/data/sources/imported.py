"""Loads any `torch.utils.data.Dataset` of the user, by import path.

Its items are pairs of an image and a label. PIL images, uint8 arrays and uint8 tensors are resized,
augmented and normalised as the config says; fp32 tensors are passed to the model unchanged.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.transforms.v2 import functional

from halfstep import caller
from halfstep.errors import UserError, in_a_line, reason
from halfstep.feed.pixels import UnknownRange, to_rgb
from halfstep.train.config import import_path
from halfstep.train.data.sources.source import Arrays, Source, limited

if TYPE_CHECKING:
    from halfstep.train.config.augment import Normalisation
    from halfstep.train.config.data import ImportConfig, ImportSplitConfig


@dataclass(frozen=True, slots=True)
class Imported:
    """A data set of the user as a split.

    Attributes:
        dataset: The data set, which returns (image, label) by index.
        name: Name of the data set in messages.
        classes: Number of classes; labels are from 0 to `classes` - 1.
    """

    dataset: Any
    name: str
    classes: int

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image, uint8 or fp32 (channels, height, width), and its label.

        Raises:
            UserError: If the item is not such a pair, or if the data set raises an exception other
                than `OSError`.
            OSError: If the data set cannot read a file.
        """
        try:
            item = self.dataset[index]
        except (UserError, OSError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's code may raise anything)
            # Converted, because an unchanged StopIteration would end the epoch without an error.
            raise _failed(self.where(index), error) from None
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(
                f"{self.where(index)} is a {type(item).__name__}; allowed: (image, label)"
            )
        image, label = item
        return self._image(image, index), self._label(label, index)

    def where(self, index: int) -> str:
        """Return the name of an image in messages: "my_data:train[7]", and its file if known."""
        path = _path(self.dataset, index)
        return f"{self.name}[{index}]" if path is None else f"{self.name}[{index}] ({path})"

    def arrays(self) -> Arrays | None:
        """Return the tensors of a `TensorDataset` if `read` returns its items unchanged."""
        tensors = self.dataset.tensors if type(self.dataset) is TensorDataset else ()
        if len(tensors) != 2 or any(type(tensor) is not torch.Tensor for tensor in tensors):
            return None
        images, labels = tensors
        if images.ndim != 4 or labels.ndim != 1 or labels.dtype != torch.int64:
            return None
        are_classes = bool(((labels >= 0) & (labels < self.classes)).all())
        return Arrays(images, labels, self.name) if are_classes else None

    def _image(self, image: Any, index: int) -> torch.Tensor:
        if isinstance(image, Image.Image):
            try:
                image = functional.pil_to_tensor(image if image.mode == "L" else to_rgb(image))
            except UnknownRange as error:
                raise UserError(f"{self.where(index)} has {error}") from error
        if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in {2, 3}:
            # torch refuses negative strides, as in image[..., ::-1], which converts BGR to RGB.
            tensor = torch.from_numpy(np.ascontiguousarray(image))
            return tensor.unsqueeze(0) if image.ndim == 2 else tensor.permute(2, 0, 1)
        if (
            isinstance(image, torch.Tensor)
            and image.ndim == 3
            and image.dtype in {torch.uint8, torch.float32}
        ):
            return image
        kind = type(image).__name__
        if isinstance(image, torch.Tensor | np.ndarray):
            kind += f" of {image.dtype} with shape {tuple(image.shape)}"
        raise UserError(
            f"{self.where(index)} has an image that is a {kind}; allowed: a PIL image, a uint8 "
            "array (height, width, channels), a tensor (channels, height, width) of uint8, or one "
            "of float32 that needs nothing more"
        )

    def _label(self, label: Any, index: int) -> int:
        try:
            number = int(label)
            is_class = number == label and 0 <= number < self.classes
        except (TypeError, ValueError, RuntimeError):
            is_class = False
        if not is_class:
            given = label.tolist() if isinstance(label, torch.Tensor) else label
            raise UserError(
                f"{self.where(index)} has the label {str(given)[:60]!r}; "
                f"allowed: 0 to {self.classes - 1}"
            )
        return number


def load(config: ImportConfig) -> Source:
    """Return the data sets that the targets of a config return.

    Raises:
        UserError: If a target cannot be imported, refuses its arguments, or returns no data set, or
            if the number of classes is not known.
    """
    train = _make(config.train, "train")
    val = _make(config.val, "val")
    classes = _classes(config, train, val)
    splits = [
        Imported(dataset, split.target, len(classes))
        for dataset, split in ((train, config.train), (val, config.val))
    ]
    image, index = _first(splits[0], config)
    is_ready = image.dtype == torch.float32
    if is_ready and image.shape[1:] != (config.resolution, config.resolution):
        raise UserError(
            f"{splits[0].where(index)} is float32 and so taken as it is, with height and width "
            f"{tuple(image.shape[1:])}, but data.resolution is {config.resolution}; "
            f"write {caller.fields({'data.resolution': image.shape[1]})} if they are equal"
        )
    channels = image.shape[0]
    return Source(
        limited(splits[0], config.train),
        limited(splits[1], config.val),
        classes,
        channels,
        normalisation=_own_normalisation(config, channels) if is_ready else None,
    )


def _first(split: Imported, config: ImportConfig) -> tuple[torch.Tensor, int]:
    """Return the first image that can be read, and its index."""
    for index in range(len(split)):
        try:
            return split.read(index)[0], index
        except OSError as error:
            if config.on_error == "fatal":
                raise UserError(
                    f"{split.where(index)} cannot be read: {error}; or write data.on_error=skip to "
                    "continue without such images"
                ) from error
    raise UserError(f"not one image of {split.name} can be read; one of them: {split.where(0)}")


def _failed(what: str, error: BaseException) -> UserError:
    """Convert an error of the user's code to a one-line error, with the traceback as a note."""
    message = in_a_line(error) if str(error) else type(error).__name__
    failed = UserError(f"{what} raised {message}; {caller.traceback()}")
    # As a note, because an exception loses its cause when a worker sends it.
    failed.add_note("".join(traceback.format_exception(error)).rstrip())
    return failed


def _path(dataset: Any, index: int) -> str | None:
    """Return the file of an item if the data set lists its files in `samples`, like torchvision."""
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, list) or index >= len(samples):
        return None
    listed = samples[index]
    path = listed[0] if isinstance(listed, tuple | list) and listed else listed
    return os.fspath(path) if isinstance(path, str | os.PathLike) else None


def _make(config: ImportSplitConfig, key: str) -> Any:
    field = f"data.{key}.target"
    target = import_path.load(config.target, field)
    try:
        dataset = target(**config.args)
    except Exception as error:  # the user's own code may raise anything
        raise UserError(
            f"data.{key}.args is {config.args}, which {config.target} refuses: {reason(error)}"
        ) from error
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(
            f"{field} is {config.target!r}, which makes a {type(dataset).__name__}; allowed: a "
            "data set with a length and items by index"
        )
    try:
        images = len(dataset)
    except Exception as error:  # noqa: BLE001  (the user's code may raise anything)
        raise _failed(f"{field} is {config.target!r}, whose length", error) from None
    if not images:
        raise UserError(f"{field} is {config.target!r}, which makes an empty data set")
    return dataset


def _classes(config: ImportConfig, train: Any, val: Any) -> tuple[str, ...]:
    own: Any = getattr(train, "classes", None)
    theirs: Any = getattr(val, "classes", None)
    named = isinstance(own, list | tuple)
    if named and isinstance(theirs, list | tuple) and list(own) != list(theirs):
        raise UserError(
            f"data.val.target is {config.val.target!r}, whose {len(theirs)} classes are not the "
            f"{len(own)} of training in the same order, so that its labels mean others; give both "
            "the same classes"
        )
    if named and config.classes in {None, len(own)}:
        return tuple(str(name) for name in own)
    if config.classes is None:
        raise UserError(
            f"{config.train.target} does not say which classes it has; write "
            f"{caller.fields({'data.classes': ...})}"
        )
    return tuple(str(number) for number in range(config.classes))


def _own_normalisation(config: ImportConfig, channels: int) -> Normalisation:
    """Return the normalisation of fp32 images: the config's, or mean 0 and std 1 without one."""
    mean, std = config.augment.mean, config.augment.std
    if mean is None or std is None:
        return (0.0,) * channels, (1.0,) * channels
    return config.augment.normalisation(channels)
