"""What a config may say about its data: one class a source, told apart by `name`.

Adding a source takes a class here, a file in `halfstep.train.data` and a row in its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from halfstep.train.config.augment import AugmentConfig
from halfstep.train.config.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping


def _without(values: Any, *former: str) -> Any:
    """Leave out settings of release 0.1.0, which read shards from end to end, for its runs."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if key not in former}


class SplitConfig(Section):
    """One of the two splits."""

    limit: int | None = Field(None, ge=1)
    """Use only so many images, spread evenly over the split; null uses all of them."""


class CsvSplitConfig(SplitConfig):
    """One of the two splits of a data set in CSV files."""

    ann_file: str | None = None
    """CSV file with the columns image, label and, if both splits are in one file, split ("train" or
    "val"); looked for in the working directory, then in data.root. One split's file may be null:
    its rows are then those of the other's file that the column split gives it."""


class CsvTrainConfig(CsvSplitConfig):
    """The training split of a data set in CSV files."""

    ann_file: str | None = "train.csv"
    """CSV file with the columns image, label and, if both splits are in one file, split ("train" or
    "val"); looked for in the working directory, then in data.root. null takes the rows of
    data.val.ann_file that its column split gives to training."""


class FolderTrainConfig(SplitConfig):
    """The training split of a data set in folders."""

    folder: str = "train"
    """Folder under data.root that holds one folder of images for each class."""


class FolderValConfig(SplitConfig):
    """The validation split of a data set in folders."""

    folder: str = "val"
    """Folder under data.root that holds one folder of images for each class."""


class ShardsConfig(SplitConfig):
    """One of the two splits of a data set in WebDataset shards."""

    urls: str
    """The tar files: a path, a glob ("train-*.tar"), or a URL that fsspec knows, with ranges in
    braces ("https://host/train-{000..099}.tar") and "::" between several. Paths are looked for in
    the working directory, then in data.root."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, values: Any) -> Any:
        return _without(values, "index")


class ImportSplitConfig(SplitConfig):
    """One of the two splits of a data set by import path."""

    target: str = Field(pattern=r"^[\w.]+:\w+$")
    """What makes the `torch.utils.data.Dataset`: "package.module:function", or a class in place of
    the function. The working directory is searched too."""
    args: dict[str, Any] = Field({})
    """Keyword arguments for the target, passed on as they are."""


class DigitsConfig(Section):
    """scikit-learn's 1,797 real 8x8 scans of handwritten digits; part of scikit-learn, no files."""

    name: Literal["digits"] = "digits"
    """Which source."""
    resolution: int = Field(16, ge=8, le=1024)
    """Height and width in pixels that images are resized to."""
    workers: int = Field(0, ge=0, le=256)
    """Processes that load batches; 0 loads them in the training process."""
    train: SplitConfig = SplitConfig()
    """The training split: three quarters of each class."""
    val: SplitConfig = SplitConfig()
    """The validation split: the other quarter."""


class ImagesConfig(Section):
    """What every source of pictures shares."""

    resolution: int = Field(224, ge=8, le=2048)
    """Height and width in pixels of the images that the model sees."""
    workers: int = Field(2, ge=0, le=256)
    """Processes that load batches of each split; 0 loads them in the training process. Neither the
    order of the images nor their augmentation depends on it."""
    on_error: Literal["fatal", "skip"] = "fatal"
    """What an image that cannot be read does: "fatal" ends the run and names it; "skip" leaves it
    out, and names it once in a warning."""
    augment: AugmentConfig = AugmentConfig()
    """What happens to the pixels between the file and the model."""


class FilesConfig(ImagesConfig):
    """What every source of encoded images shares."""

    root: str = "."
    """Folder that the paths of the images start from."""
    cache_images: Literal["none", "ram", "disk"] = "none"
    """Where images are kept as they were decoded, so that only the first epoch decodes them: in
    "ram", for this run and all its workers, or on "disk", for later runs too. They are the same to
    the bit."""
    cache_images_gigabytes: float = Field(4.0, gt=0.001)
    """The most that may take, in 10^9 bytes; images that come then are decoded each time. A picture
    of 500 x 375 pixels takes 0.56 MB."""
    cache_images_folder: str = "~/.cache/halfstep/images"
    """Folder of what is kept on disk: a file for each data.root."""


class ColumnsConfig(Section):
    """What CSV files call their columns; letter case does not count."""

    image: str = Field("image", min_length=1)
    """Column of the paths of the images."""
    label: str = Field("label", min_length=1)
    """Column of the names of their classes."""
    split: str = Field("split", min_length=1)
    """Column that says "train" or "val", where one file serves both splits."""


class CsvConfig(FilesConfig):
    """Images named by CSV files, as on Kaggle: image,label and perhaps split."""

    name: Literal["csv"]
    """Which source."""
    root: str = "."
    """Folder that the paths in the column image start from."""
    columns: ColumnsConfig = ColumnsConfig()
    """What the files call their columns."""
    train: CsvTrainConfig = CsvTrainConfig()
    """The training split; its labels, sorted, are the classes."""
    val: CsvSplitConfig = CsvSplitConfig()
    """The validation split."""


class FolderConfig(FilesConfig):
    """One folder for each split, in it one for each class, in that the images (ImageFolder)."""

    name: Literal["folder"]
    """Which source."""
    root: str
    """Folder that holds the folders of the splits."""
    train: FolderTrainConfig = FolderTrainConfig()
    """The training split; the names of its folders, sorted, are the classes."""
    val: FolderValConfig = FolderValConfig()
    """The validation split."""


class VisionConfig(ImagesConfig):
    """The small sets that torchvision knows and can download."""

    name: Literal["cifar10", "cifar100", "mnist", "fashion-mnist"]
    """Which source."""
    resolution: int = Field(32, ge=8, le=2048)
    """Height and width in pixels of the images that the model sees."""
    root: str = "data"
    """Folder that holds, or is to hold, the set's own folder, such as cifar-10-batches-py."""
    download: bool = False
    """Whether to download what is missing."""
    verify: bool = True
    """Whether CIFAR's files must have the published checksums. false takes a copy with other
    pixels, such as one that went through JPEG; nothing in it is executed either way."""
    train: SplitConfig = SplitConfig()
    """The training split."""
    val: SplitConfig = SplitConfig()
    """The validation split: the set's test images."""


class WebdatasetConfig(FilesConfig):
    """Tar files of images and labels (jpg, jpeg, png or webp, and cls), as WebDataset has them."""

    name: Literal["webdataset"]
    """Which source."""
    root: str = "."
    """Folder that paths of shards and of class names may start from."""
    classes: int = Field(ge=2)
    """Number of classes; a cls is a number below it."""
    names: str | None = None
    """Text file with one class name a line; a cls may then be a name too. null numbers them."""
    cache: str = "~/.cache/halfstep/shards"
    """Folder that keeps the shards behind URLs, which are fetched once, and what is in all shards,
    which are walked once."""
    train: ShardsConfig
    """The training split."""
    val: ShardsConfig
    """The validation split."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, values: Any) -> Any:
        return _without(values, "interleave", "shuffle")


class ImportConfig(ImagesConfig):
    """Any `torch.utils.data.Dataset` of (image, label), by import path."""

    name: Literal["import"]
    """Which source."""
    classes: int | None = Field(None, ge=2)
    """Number of classes; null asks the training data set's own `classes`, a list of names."""
    train: ImportSplitConfig
    """The training split."""
    val: ImportSplitConfig
    """The validation split."""


DataConfig = Annotated[
    DigitsConfig | CsvConfig | FolderConfig | VisionConfig | WebdatasetConfig | ImportConfig,
    Field(discriminator="name"),
]


def of_every_source(values: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Return the settings of a section `data` that hold for another source too.

    They say how images are loaded and what the model sees of them; where images lie, and which of
    them a split has, is the business of each source.
    """
    taken = (DigitsConfig if name == "digits" else ImagesConfig).model_fields
    shared = ImagesConfig.model_fields.keys() & taken.keys()
    return {key: value for key, value in values.items() if key in shared}
