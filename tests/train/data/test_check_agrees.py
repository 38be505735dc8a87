"""What training refuses or warns of, `halfstep data check` finds: both are shown the same sets."""

import warnings

import pytest

from data.small import CPU, encoded, section
from halfstep.errors import UserError
from halfstep.train import data
from halfstep.train.config import Config
from halfstep.train.data.audit import check, listing
from halfstep.train.data.sources.faults import DataWarning

TRAIN = "image,label\n1.png,oak\n2.png,elm\n3.png,oak\n4.png,elm\n"
VAL = "image,label\n5.png,oak\n6.png,elm\n"
ALL = "image,label,split\n1.png,oak,train\n2.png,elm,train\n5.png,oak,val\n"
NOTHING = {"train": {"ann_file": None}, "val": {"ann_file": None}}
# What is odd about each, and the texts of the two lists.
LISTS = {
    "nothing": (TRAIN, VAL),
    "a header alone": ("image,label\n", VAL),
    "a header alone in validation": (TRAIN, "image,label\n"),
    "empty": ("", VAL),
    "blank lines": ("\n\n\n", VAL),
    "a single class": ("image,label\n1.png,oak\n2.png,oak\n", "image,label\n5.png,oak\n"),
    "numbers written differently": (
        "image,label\n1.png,0\n2.png,1\n",
        "image,label\n5.png,0.0\n6.png,1.0\n",
    ),
    "a label of validation alone": (TRAIN, VAL + "7.png,fir\n"),
    "a missing file": (TRAIN + "none.png,oak\n", VAL),
    "a missing file in validation": (TRAIN, VAL + "none.png,oak\n"),
    "a folder for an image": (TRAIN + "folder.png,oak\n", VAL),
    "a name that is too long": (TRAIN + "x" * 300 + ".png,oak\n", VAL),
    "an unreadable image": (TRAIN + "broken.png,oak\n", VAL),
    "an empty image": (TRAIN, VAL + "empty.png,oak\n"),
    "one image with two labels": (TRAIN + "1.png,elm\n", VAL),
    "a copy with another label": (TRAIN + "copy.png,elm\n", VAL),
    "an image of both splits": (TRAIN, VAL + "1.png,oak\n"),
    "a copy in the other split": (TRAIN, VAL + "copy.png,oak\n"),
    "a row twice": (TRAIN + "1.png,oak\n", VAL),
    "two missing files and an unknown label": (TRAIN + "none.png,oak\n", VAL + "gone.png,fir\n"),
    "no label": (TRAIN + "7.png,\n", VAL),
    "no image": (TRAIN + ",oak\n", VAL),
    "a label that is nan": (TRAIN + "7.png,nan\n", VAL),
    "classes in two cases": (TRAIN + "7.png,Oak\n", VAL),
    "a name that has another case on disk": (TRAIN + "7.PNG,oak\n", VAL),
    "another case in validation": (TRAIN, VAL + "7.PNG,oak\n"),
    "several rows that are wrong": (TRAIN + ",oak\n7.png,\n7.png,a,b\n", VAL),
    "too many values": (TRAIN + "7.png,oak,red\n", VAL),
    "an open quote": (TRAIN + '7.png,"oak\n', VAL),
    "a quote that swallows a row": (TRAIN + '7.png,"oak\n8.png,elm"\n', VAL),
    "a null byte": (TRAIN + "a\0b.png,oak\n", VAL),
    "another encoding": (TRAIN.encode() + b"7.png,\xe9\n", VAL),
    "UTF-16": (TRAIN.encode("utf-16"), VAL),
    "other columns": ("filename,species\n1.png,oak\n2.png,elm\n", VAL),
    "a column twice": ("image,label,label\n1.png,oak,elm\n", VAL),
    "colons": (TRAIN.replace(",", ":"), VAL),
    "a split that is none": (ALL.replace("train\n5", "trian\n5"), VAL),
    "no row of a split": (ALL.replace("val", "train"), None),
    "no column split in the only list": (TRAIN, None),
    "both splits in one list": (ALL, None),
    "one list for both splits": (TRAIN, "train.csv"),
    "semicolons": (TRAIN.replace(",", ";"), VAL.replace(",", ";")),
    "tabs": (TRAIN.replace(",", "\t"), VAL),
    "capitals": (TRAIN.replace("image,label", "Image,LABEL"), VAL),
}
SOUND = {"nothing", "both splits in one list", "semicolons", "tabs", "capitals"}
FOLDERS = {
    "nothing": ("train/a/1.png", "train/b/2.png", "val/a/3.png"),
    "one class": ("train/a/1.png", "val/a/3.png"),
    "a class of validation alone": ("train/a/1.png", "train/b/2.png", "val/c/3.png"),
    "no validation": ("train/a/1.png", "train/b/2.png"),
    "a class without images": ("train/a/1.png", "train/b/2.txt", "val/a/3.png"),
    "validation without images": ("train/a/1.png", "train/b/2.png", "val/a/3.txt"),
    "no class": ("train/1.png", "val/a/3.png"),
    "a hidden file": ("train/a/1.png", "train/b/2.png", "val/a/3.png", "train/a/._1.png"),
    "a hidden class": ("train/a/1.png", "train/b/2.png", "val/a/3.png", "train/.c/4.png"),
    "another format": ("train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.gif"),
    "classes in two cases": ("train/a/1.png", "train/A/2.png", "val/a/3.png"),
    "a class that is nan": ("train/a/1.png", "train/nan/2.png", "val/a/3.png"),
}


def config(**fields):
    return Config.model_validate(
        {
            "name": "odd",
            "epochs": 1,
            "batch_size": 2,
            "model": {"name": "timm:resnet18"},
            "optimizer": {"name": "sgd", "lr": 0.1},
            "schedule": {"name": "constant"},
            "data": section(**fields),
        }
    )


def complaints(chosen):
    """Return what an epoch of training and one of validation are refused or warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            loaded = data.load(chosen.data, batch_size=2, seed=0, device=CPU)
            for batches in (loaded.train, loaded.val):
                list(batches.epoch())
        except UserError as error:
            return [str(error)]
    return [str(each.message) for each in said if each.category is DataWarning]


def found(chosen):
    refused = check.whole_set(chosen)
    try:
        entries = listing.of_config(chosen.data)
    except UserError:
        assert refused
        entries = []
    return [*refused, *check.faults(check.look(entries, 1))]


@pytest.fixture
def images(tmp_path):
    for number in range(1, 9):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    (tmp_path / "copy.png").write_bytes(encoded(1))
    (tmp_path / "broken.png").write_bytes(encoded(9)[:40])
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    return tmp_path


@pytest.mark.parametrize("odd", LISTS)
def test_check_finds_in_lists_what_training_complains_of(images, odd):
    train, val = LISTS[odd]
    named = {"train": {"ann_file": "train.csv"}}
    for name, text in (("train.csv", train), ("val.csv", val)):
        if text == "train.csv":
            named["val"] = {"ann_file": text}
        elif text is not None:
            (images / name).write_bytes(text if isinstance(text, bytes) else text.encode())
            named[name[:-4]] = {"ann_file": name}
    chosen = config(name="csv", root=str(images), **named)
    assert bool(complaints(chosen)) == bool(found(chosen)) == (odd not in SOUND)


@pytest.mark.parametrize("odd", FOLDERS)
def test_check_finds_in_folders_what_training_complains_of(tmp_path, odd):
    for number, name in enumerate(FOLDERS[odd]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(encoded(number))
    chosen = config(name="folder", root=str(tmp_path))
    assert bool(complaints(chosen)) == bool(found(chosen)) == (odd != "nothing")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "csv", "root": "nowhere"},
        {"name": "csv", **NOTHING},
        {"name": "folder", "root": "nowhere"},
        {"name": "cifar10", "root": "nowhere"},
        {"name": "mnist", "root": "nowhere", "verify": False},
        {"name": "webdataset", "classes": 2, "train": {"urls": "a.tar"}, "val": {"urls": "b.tar"}},
    ],
)
def test_check_finds_what_is_not_there_at_all(fields, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = config(**fields)
    assert complaints(chosen) == [fault.detail for fault in found(chosen)] != []


IMPORTED = """
import torch

class Grey:
    classes = ["a", "b"]
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.zeros(3 if index < 3 else 1, 9, 9, dtype=torch.uint8) + index, index % 2

class Label(Grey):
    def __getitem__(self, index):
        return torch.zeros(3, 9, 9, dtype=torch.uint8), index

class Size(Grey):
    def __getitem__(self, index):
        return torch.zeros(3, 8, 8 + (index > 2)), index % 2

class Raises(Grey):
    def __getitem__(self, index):
        return super().__getitem__(index if index < 2 else int("x"))
"""


@pytest.mark.parametrize("name", ["Grey", "Label", "Size", "Raises"])
def test_check_finds_in_sets_by_import_path_what_training_refuses(tmp_path, monkeypatch, name):
    (tmp_path / "odd_sets.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    target = {"target": f"odd_sets:{name}"}
    chosen = config(name="import", train=target, val=target)
    (line,) = complaints(chosen)
    details = [fault.detail for fault in found(chosen) if fault.kind == "refused"]
    assert line in details
