from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halfstep.train.data.sources import duplicates
from halfstep.train.data.sources.csv_rows import CsvRow


def find(root, train, val=()):
    listed = [
        (name, [CsvRow(number + 2, image, label, "") for number, (image, label) in enumerate(rows)])
        for name, rows in (("train.csv", train), ("val.csv", val))
    ]
    return duplicates.find(listed, root)


def test_an_image_that_was_saved_again_is_the_same_unless_there_are_many(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.bmp")
    rows = [("a.png", "oak")], [("b.bmp", "oak")]
    assert len(find(tmp_path, *rows).shared) == 1
    monkeypatch.setattr(duplicates, "MOST_DECODED", 1)
    assert find(tmp_path, *rows) == duplicates.Duplicates()


@pytest.mark.parametrize("decoded", [0, 100])
def test_files_that_differ_only_late_are_no_duplicates(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr(duplicates, "MOST_DECODED", decoded)
    (tmp_path / "a").write_bytes(b"x" * 5000 + b"1")
    (tmp_path / "b").write_bytes(b"x" * 5000 + b"2")
    (tmp_path / "c").write_bytes(b"x" * 5000 + b"1")
    found = find(tmp_path, [("a", "oak"), ("b", "elm"), ("c", "ash")])
    assert found.contradicting == ["train.csv row 2 (a: 'oak'), row 4 (c: 'ash')"]


def test_copies_of_one_label_in_one_split_are_no_fault_of_the_list(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"same")
    found = find(tmp_path, [("a", "oak"), ("b", "oak")])
    assert found == duplicates.Duplicates()


def test_one_path_written_in_two_ways_is_one_image(tmp_path):
    (tmp_path / "a").write_bytes(b"same")
    found = find(tmp_path, [("a", "oak"), ("./a", "oak")])
    assert len(found.repeated) == 1


def test_files_of_a_size_of_their_own_are_not_opened(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"22")
    monkeypatch.setattr(duplicates, "MOST_DECODED", 1)
    monkeypatch.setattr(Path, "open", None)
    assert find(tmp_path, [("a", "oak"), ("b", "elm")]) == duplicates.Duplicates()


def test_very_long_lists_are_compared_by_path_alone(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(b"same")
    monkeypatch.setattr(duplicates, "MOST", 2)
    found = find(tmp_path, [("a", "oak"), ("b", "elm"), ("a", "elm")])
    assert found.contradicting == ["train.csv row 2 (a: 'oak'), row 4 (a: 'elm')"]
