"""The config sections of data sources: one class per source, selected by `name`.

To add a source, write a class here, a file in `halfstep.train.data.sources`, and a row in the
table `_SOURCES` of `halfstep.train.data`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from halfstep.train.config.augment import AugmentConfig
from halfstep.train.config.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping


def _without(values: Any, *former: str) -> Any:
    """Drop the settings `former`, so that the configs of runs of release 0.1.0 still load."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if key not in former}


class SplitConfig(Section):
    """One of the two splits."""

    limit: int | None = Field(None, ge=1)
    """Use only this many images, spread evenly over the split; null uses all of them."""


class CsvSplitConfig(SplitConfig):
    """One of the two splits of a data set in CSV files."""

    ann_file: str | None = None
    """CSV file with the columns image and label, searched in the working directory, then in
    data.root. null uses the file of the other split, which then needs a column split with "train"
    or "val" in each row."""


class CsvTrainConfig(CsvSplitConfig):
    """The training split of a data set in CSV files."""

    ann_file: str | None = "train.csv"
    """CSV file with the columns image and label, searched in the working directory, then in
    data.root. null uses data.val.ann_file, which then needs a column split with "train" or "val" in
    each row."""


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
    """The tar files: a path, a glob ("train-*.tar"), or a URL that fsspec supports. Ranges are
    written in braces ("https://host/train-{000..099}.tar"), and several values are separated by
    "::". Paths are searched in the working directory, then in data.root."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, values: Any) -> Any:
        return _without(values, "index")


class ImportSplitConfig(SplitConfig):
    """One of the two splits of a data set that is imported."""

    target: str = Field(pattern=r"^[\w.]+:\w+$")
    """Function or class that returns the `torch.utils.data.Dataset`, as "package.module:name". The
    working directory is on the import path."""
    args: dict[str, Any] = Field({})
    """Keyword arguments for the target."""


class InMemoryConfig(Section):
    """Settings of sources whose images are in memory anyway."""

    cache_images: Literal["none", "device"] = "none"
    """Where to keep the images: "device" keeps them in the memory of the device, where they are
    also shuffled, cropped and flipped, so that no worker loads a batch and none is copied."""
    cache_images_gigabytes: float = Field(4.0, gt=0.001)
    """Maximum size of the images on the device in 10^9 bytes."""


class DigitsConfig(InMemoryConfig):
    """scikit-learn's 1,797 real 8x8 scans of handwritten digits; part of scikit-learn, no files."""

    name: Literal["digits"] = "digits"
    """Name of the data source."""
    resolution: int = Field(16, ge=8, le=1024)
    """Height and width in pixels that images are resized to."""
    workers: int = Field(0, ge=0, le=256)
    """Number of loader processes; 0 loads batches in the training process."""
    train: SplitConfig = SplitConfig()
    """The training split: three quarters of each class."""
    val: SplitConfig = SplitConfig()
    """The validation split: the other quarter."""


class ImagesConfig(Section):
    """Settings that all sources of images share."""

    resolution: int = Field(224, ge=8, le=2048)
    """Height and width in pixels of the images that the model sees."""
    workers: int = Field(2, ge=0, le=256)
    """Number of loader processes per split; 0 loads batches in the training process. The order of
    the images and their augmentation do not depend on this number."""
    on_error: Literal["fatal", "skip"] = "fatal"
    """What to do with an image that cannot be read: "fatal" ends the run with an error that names
    the image; "skip" leaves it out with one warning."""
    augment: AugmentConfig = AugmentConfig()
    """Cropping, augmentation and normalization of the images."""


class FilesConfig(ImagesConfig):
    """Settings that all sources of encoded images share."""

    root: str = "."
    """Base folder of the image paths."""
    cache_images: Literal["none", "ram", "disk", "device"] = "none"
    """Where to cache decoded images, so that only the first epoch decodes them: in "ram", shared by
    the run's loader processes, or on "disk", for later runs too. Cached images are bit-identical.
    "device" decodes all images at the start and keeps them in the memory of the device, where they
    are also shuffled, cropped and flipped, so that no worker loads a batch and none is copied."""
    cache_images_gigabytes: float = Field(4.0, gt=0.001)
    """Maximum size of the cache in 10^9 bytes. Images that do not fit are decoded each time, and on
    a device refused. An image of 500 x 375 pixels takes 0.56 MB."""
    cache_images_folder: str = "~/.cache/halfstep/images"
    """Folder of the cache on disk; it holds one file for each data.root."""


class ColumnsConfig(Section):
    """Column names of the CSV files; letter case is ignored."""

    image: str = Field("image", min_length=1)
    """Column with the image paths."""
    label: str = Field("label", min_length=1)
    """Column with the class names."""
    split: str = Field("split", min_length=1)
    """Column with "train" or "val", if both splits are in one file."""


class CsvConfig(FilesConfig):
    """Images named by CSV files, as on Kaggle: image,label and perhaps split."""

    name: Literal["csv"]
    """Name of the data source."""
    root: str = "."
    """Base folder of the paths in the column image."""
    columns: ColumnsConfig = ColumnsConfig()
    """Column names of the files."""
    train: CsvTrainConfig = CsvTrainConfig()
    """The training split. Its sorted labels are the classes."""
    val: CsvSplitConfig = CsvSplitConfig()
    """The validation split."""


class FolderConfig(FilesConfig):
    """A folder per split that holds a folder of images per class (ImageFolder)."""

    name: Literal["folder"]
    """Name of the data source."""
    root: str
    """Folder that holds the folders of the splits."""
    train: FolderTrainConfig = FolderTrainConfig()
    """The training split. Its sorted folder names are the classes."""
    val: FolderValConfig = FolderValConfig()
    """The validation split."""


class VisionConfig(InMemoryConfig, ImagesConfig):
    """Small data sets that torchvision can download."""

    name: Literal["cifar10", "cifar100", "mnist", "fashion-mnist"]
    """Name of the data source."""
    resolution: int = Field(32, ge=8, le=2048)
    """Height and width in pixels of the images that the model sees."""
    root: str = "data"
    """Folder that holds the data set's own folder, such as cifar-10-batches-py; downloads go
    here."""
    download: bool = False
    """Whether to download missing files."""
    verify: bool = True
    """Whether CIFAR's files must have the published checksums. false accepts a copy with other
    pixels, for example after JPEG compression. Nothing in the files is executed in either case."""
    train: SplitConfig = SplitConfig()
    """The training split."""
    val: SplitConfig = SplitConfig()
    """The validation split: the set's test images."""


class WebdatasetConfig(FilesConfig):
    """Tar files in WebDataset format, with images (jpg, jpeg, png, webp) and labels (cls)."""

    name: Literal["webdataset"]
    """Name of the data source."""
    root: str = "."
    """Base folder for the paths of shards and class names."""
    classes: int = Field(ge=2)
    """Number of classes; a cls file holds a number from 0 to classes - 1."""
    names: str | None = None
    """Text file with one class name per line; a cls file may then also hold a name. null names the
    classes by their numbers."""
    cache: str = "~/.cache/halfstep/shards"
    """Folder that caches shards downloaded from URLs, and the index of every shard."""
    train: ShardsConfig
    """The training split."""
    val: ShardsConfig
    """The validation split."""

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, values: Any) -> Any:
        return _without(values, "interleave", "shuffle")


class ImportConfig(InMemoryConfig, ImagesConfig):
    """Any `torch.utils.data.Dataset` of (image, label), by import path."""

    name: Literal["import"]
    """Name of the data source."""
    classes: int | None = Field(None, ge=2)
    """Number of classes; null uses the training data set's attribute `classes`, a list of names."""
    train: ImportSplitConfig
    """The training split."""
    val: ImportSplitConfig
    """The validation split."""


DataConfig = Annotated[
    DigitsConfig | CsvConfig | FolderConfig | VisionConfig | WebdatasetConfig | ImportConfig,
    Field(discriminator="name"),
]


def of_every_source(values: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Return the settings of a section `data` that also apply to the source `name`.

    They determine how images are loaded, resized and augmented. The location of the images and the
    contents of the splits are specific to each source.
    """
    taken = (DigitsConfig if name == "digits" else ImagesConfig).model_fields
    shared = ImagesConfig.model_fields.keys() & taken.keys()
    return {key: value for key, value in values.items() if key in shared}
