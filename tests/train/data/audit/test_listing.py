import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from halfstep.errors import UserError
from halfstep.train.config.data import DataConfig
from halfstep.train.data.audit import listing


def config(**fields):
    return TypeAdapter(DataConfig).validate_python(fields)


@pytest.fixture
def root(tmp_path):
    for index, name in enumerate(("train/elm/a", "train/oak/b", "val/oak/c")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((4, 4, 3), index, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    (tmp_path / "train.csv").write_text("image,label\ntrain/elm/a.png,elm\ntrain/oak/b.png,oak\n")
    (tmp_path / "val.csv").write_text("image,label\nval/oak/c.png,oak\nval/oak/missing.png,oak\n")
    (tmp_path / "all.csv").write_text(
        "image,label,split\ntrain/elm/a.png,elm,train\ntrain/oak/b.png,oak,train\n"
        "val/oak/c.png,oak,val\n"
    )
    return tmp_path


def told(entries):
    return [(entry.image, entry.label, entry.split, entry.row) for entry in entries]


def test_a_csv_is_listed_with_row_numbers_and_labels(root):
    entries = listing.of_csv(root / "all.csv", root)
    assert told(entries) == [
        ("train/elm/a.png", "elm", "train", 2),
        ("train/oak/b.png", "oak", "train", 3),
        ("val/oak/c.png", "oak", "val", 4),
    ]
    image, label = entries[1].read()
    assert image.unique().tolist() == [1]
    assert label == "oak"


def test_rows_of_another_split_are_not_listed_if_each_split_has_a_file(root):
    data = {"train": {"ann_file": "all.csv"}, "val": {"ann_file": "all.csv"}}
    entries = listing.of_config(config(name="csv", root=str(root), **data))
    assert [(entry.split, entry.row) for entry in entries] == [
        ("train", 2),
        ("train", 3),
        ("val", 4),
    ]
    data["val"] = {"ann_file": "val.csv"}
    entries = listing.of_config(config(name="csv", root=str(root), **data))
    assert [entry.row for entry in entries] == [2, 3, 2, 3]
    assert [entry.file for entry in entries[2:]] == [str(root / "val.csv")] * 2


def test_a_config_of_two_csvs_is_listed_whole_with_what_is_missing(root):
    data = {"train": {"ann_file": "train.csv"}, "val": {"ann_file": "val.csv"}}
    entries = listing.of_config(config(name="csv", root=str(root), **data))
    assert [(entry.split, entry.row) for entry in entries] == [
        ("train", 2),
        ("train", 3),
        ("val", 2),
        ("val", 3),
    ]
    assert [entry.file for entry in entries[1:3]] == [
        str(root / "train.csv"),
        str(root / "val.csv"),
    ]
    with pytest.raises(FileNotFoundError):
        entries[3].read()


@pytest.mark.parametrize(
    "data",
    [
        {"train": {"ann_file": "all.csv"}},
        {"train": {"ann_file": "all.csv"}, "val": {"ann_file": "all.csv"}},
        {"train": {"ann_file": None}, "val": {"ann_file": "all.csv"}},
    ],
)
def test_a_csv_of_both_splits_is_listed_once(root, data):
    entries = listing.of_config(config(name="csv", root=str(root), **data))
    assert told(entries) == told(listing.of_csv(root / "all.csv", root))


def test_a_config_without_csvs_is_refused(root):
    nothing = {"train": {"ann_file": None}, "val": {"ann_file": None}}
    with pytest.raises(UserError, match="both null"):
        listing.of_config(config(name="csv", root=str(root), **nothing))


def test_folders_are_listed_by_path(root):
    entries = listing.of_config(config(name="folder", root=str(root)))
    assert [(entry.image, entry.split) for entry in entries] == [
        (str(root / "train/elm/a.png"), "train"),
        (str(root / "train/oak/b.png"), "train"),
        (str(root / "val/oak/c.png"), "val"),
    ]
    image, label = entries[2].read()
    assert image.unique().tolist() == [2]
    assert label == "oak"


def test_sets_without_files_are_listed_by_index():
    entries = listing.of_config(config(name="digits"))
    assert len(entries) == 1797
    assert len({(entry.split, entry.image) for entry in entries}) == 1797
