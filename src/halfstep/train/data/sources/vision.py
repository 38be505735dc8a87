"""Loads torchvision's small data sets into memory: CIFAR-10 and -100, MNIST and Fashion-MNIST.

`timm.data.create_dataset("torch/cifar10")`, which wraps the same classes, is not used: it returns
one PIL image at a time, ten times slower than this array (benchmarks/kept.py), and requires CIFAR's
checksums, which copies with other pixels do not have. Other data sets that it opens (those of
Hugging Face) can be used through the source `import`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torchvision import datasets

from halfstep import caller
from halfstep.errors import UserError, reason
from halfstep.train.data.sources import cifar_files
from halfstep.train.data.sources.source import Arrays, Source, limited

if TYPE_CHECKING:
    from halfstep.train.config.data import VisionConfig

_SETS: dict[str, Any] = {
    **cifar_files.LAYOUTS,
    "mnist": datasets.MNIST,
    "fashion-mnist": datasets.FashionMNIST,
}


def load(config: VisionConfig) -> Source:
    """Return the training and test images of a data set.

    Raises:
        UserError: If the data set is not on disk and cannot be downloaded, or if its files are not
            the published ones.
    """
    root = Path(config.root).expanduser()
    if not config.verify:
        if config.name not in cifar_files.LAYOUTS:
            raise UserError(
                f"data.verify is false, but {config.name} has no checksums; write data.verify=true"
            )
        train, val = (cifar_files.read(root, config.name, train=train) for train in (True, False))
        classes = cifar_files.classes(root, config.name)
    else:
        sets = [_open(config, root, train=train) for train in (True, False)]
        classes = tuple(sets[0].classes)
        train, val = ((_channels_first(one.data), torch.as_tensor(one.targets)) for one in sets)
    return Source(
        limited(Arrays(*train, f"{config.name} train, image"), config.train),
        limited(Arrays(*val, f"{config.name} test, image"), config.val),
        classes,
        channels=train[0].shape[1],
    )


def _open(config: VisionConfig, root: Path, *, train: bool) -> Any:
    try:
        return _SETS[config.name](str(root), train=train, download=config.download)
    except (RuntimeError, OSError) as error:  # a URLError is an OSError
        raise UserError(_why_not(config, str(root), error)) from error


def _why_not(config: VisionConfig, where: str, error: Exception) -> str:
    if config.download:
        return (
            f"{config.name} could not be downloaded into {where!r}: {reason(error)}; fetch it "
            f"where there is a network, and write {caller.fields({'data.root': 'FOLDER'})}"
        )
    folder = cifar_files.LAYOUTS.get(config.name)
    if folder is not None and Path(where, folder.base_folder).is_dir():
        return (
            f"{where!r} holds {config.name}, but not with the checksums of the published files; "
            f"write {caller.fields({'data.verify': False})} to take it as it is, or "
            f"{caller.fields({'data.download': True})}"
        )
    return (
        f"{config.name} is not in {where!r}; write {caller.fields({'data.download': True})} to "
        f"fetch it there, or {caller.fields({'data.root': 'FOLDER'})} where it is"
    )


def _channels_first(images: Any) -> torch.Tensor:
    """Return (N, channels, height, width) for CIFAR's (N, h, w, 3) arrays and MNIST's (N, h, w)."""
    tensor = torch.as_tensor(images)
    return tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
