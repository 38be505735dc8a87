"""scikit-learn's digits: 1,797 real scans with 8x8 pixels and 17 grey levels; no download.

The set is the test part of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
1998). It is small enough to train on in seconds and real enough for accuracies to mean something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from halfstep.train.data.sources.source import Arrays, Source, limited

if TYPE_CHECKING:
    from halfstep.train.config.data import DigitsConfig

_VAL_SHARE = 0.25
_GREY_MAX = 16.0


def load(config: DigitsConfig) -> Source:
    """Return the digits at `config.resolution`, normalised with the training split's statistics.

    A quarter of each class is for validation. The split does not depend on the seed of the run, so
    that runs can be compared.
    """
    # Imported here because it is slow, and other data sets do not need it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, val = train_test_split(
        range(len(digits.target)), test_size=_VAL_SHARE, stratify=digits.target, random_state=0
    )
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / _GREY_MAX
    images = functional.resize(
        images,
        [config.resolution, config.resolution],
        interpolation=InterpolationMode.BILINEAR,
        antialias=True,
    )
    mean, std = images[train].mean(), images[train].std()
    images = (images - mean) / std
    labels = torch.tensor(digits.target, dtype=torch.int64)
    return Source(
        train=limited(Arrays(images[train], labels[train], "digit"), config.train),
        val=limited(Arrays(images[val], labels[val], "digit"), config.val),
        classes=tuple(str(name) for name in digits.target_names),
        channels=1,
        normalisation=((mean.item(),), (std.item(),)),
    )
