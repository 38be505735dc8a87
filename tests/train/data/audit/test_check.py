"""Faults are planted in images of noise, which have none."""

import numpy as np
import pytest
import torch
from PIL import Image

from halfstep.train.data.audit.check import BLANK_LEVELS, MEANINGS, faults, look
from halfstep.train.data.audit.listing import Entry, of_csv


def noise(seed, size=(24, 32)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.fixture
def planted(tmp_path):
    """Write images by name and return what `check` finds in a CSV that lists them."""

    def check(images, rows, threads=2):
        for name, pixels in images.items():
            if isinstance(pixels, bytes):
                (tmp_path / name).write_bytes(pixels)
            else:
                Image.fromarray(pixels).save(tmp_path / name)
        file = tmp_path / "train.csv"
        file.write_text("\n".join(["image,label", *rows]) + "\n")
        return faults(look(of_csv(file, tmp_path), threads))

    return check


def told(found):
    return [(fault.kind, [place.row for place in fault.places]) for fault in found]


def test_good_images_have_no_faults(planted):
    images = {f"{seed}.png": noise(seed) for seed in range(20)}
    assert planted(images, [f"{name},oak" for name in images]) == []


def test_missing_images_are_told_by_row(planted):
    found = planted({"a.png": noise(0)}, ["a.png,oak", "b.png,elm"])
    assert told(found) == [("missing", [3])]
    assert found[0].detail.endswith("b.png")
    assert found[0].places[0].label == "elm"


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xd8\xff\xe0"])
def test_unreadable_images_are_told_by_row(planted, content):
    found = planted({"a.png": noise(0), "b.jpg": content}, ["a.png,oak", "b.jpg,elm"])
    assert told(found) == [("unreadable", [3])]
    assert "b.jpg" in found[0].detail


def test_what_cannot_be_opened_is_unreadable(planted, tmp_path):
    (tmp_path / "folder.png").mkdir()
    assert told(planted({}, ["folder.png,oak"])) == [("unreadable", [2])]


def test_a_truncated_jpeg_is_unreadable(planted, tmp_path):
    whole = tmp_path / "whole.jpg"
    Image.fromarray(noise(0)).save(whole)
    images = {"half.jpg": whole.read_bytes()[:-400]}
    assert told(planted(images, ["half.jpg,oak", "whole.jpg,oak"])) == [("unreadable", [2])]


def test_identical_images_are_one_fault_with_all_their_rows(planted):
    images = {"a.png": noise(0), "b.png": noise(1), "c.png": noise(0), "d.png": noise(0)}
    found = planted(images, ["a.png,oak", "b.png,oak", "c.png,oak", "d.png,oak"])
    assert told(found) == [("duplicate", [2, 4, 5])]


def test_identical_images_with_different_labels_are_a_conflict(planted):
    images = {"a.png": noise(0), "b.png": noise(1), "c.png": noise(0)}
    found = planted(images, ["a.png,oak", "b.png,oak", "c.png,elm"])
    assert told(found) == [("conflict", [2, 4])]
    assert found[0].detail == "2 times the same image, labelled oak and elm"


def test_an_image_listed_twice_is_identical_to_itself(planted):
    assert told(planted({"a.png": noise(0)}, ["a.png,oak", "a.png,oak"])) == [("duplicate", [2, 3])]


def test_identical_is_said_of_pixels_and_not_of_files(planted):
    rotated = noise(0, (24, 24)), np.rot90(noise(0, (24, 24))).copy()
    found = planted(
        {"a.png": rotated[0], "b.bmp": rotated[0], "c.png": rotated[1]},
        ["a.png,oak", "b.bmp,oak", "c.png,oak"],
    )
    assert told(found) == [("duplicate", [2, 3])]


def test_the_same_pixels_in_another_shape_are_another_image(planted):
    pixels = noise(0)
    images = {"a.png": pixels, "b.png": pixels.reshape(32, 24, 3)}
    assert planted(images, ["a.png,oak", "b.png,elm"]) == []


def test_identical_images_in_both_splits_are_told_from_mere_duplicates(tmp_path):
    Image.fromarray(noise(0)).save(tmp_path / "a.png")
    file = tmp_path / "all.csv"
    file.write_text("image,label,split\na.png,oak,train\na.png,oak,val\n")
    found = faults(look(of_csv(file, tmp_path), 1))
    assert told(found) == [("shared", [2, 3])]
    assert [place.split for place in found[0].places] == ["train", "val"]


def near(colour, levels, odd):
    """An image around one colour, with `odd` pixels of 3,000 that are far from it."""
    image = np.random.default_rng(0).integers(-levels, levels, (50, 60, 3), endpoint=True)
    image += np.array(colour)
    image.reshape(-1, 3)[:odd] = 255 - np.array(colour)
    return image.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (90, 30, 200)])
def test_images_of_nearly_one_colour_are_blank(planted, colour):
    found = planted({"a.png": near(colour, BLANK_LEVELS // 2, 8)}, ["a.png,oak"])
    assert told(found) == [("blank", [2])]
    assert "99.73% of it is the colour" in found[0].detail


@pytest.mark.parametrize(("levels", "odd"), [(0, 12), (2 * BLANK_LEVELS, 0)])
def test_images_with_something_on_them_are_not_blank(planted, levels, odd):
    assert planted({"a.png": near((90, 120, 200), levels, odd)}, ["a.png,oak"]) == []


def test_blank_images_are_duplicates_too(planted):
    white = np.full((8, 8, 3), 255, dtype=np.uint8)
    found = planted({"a.png": white, "b.png": white}, ["a.png,oak", "b.png,elm"])
    assert told(found) == [("conflict", [2, 3]), ("blank", [2]), ("blank", [3])]


def test_faults_come_by_kind_and_then_by_row(planted):
    images = {"a.png": noise(0), "b.png": noise(0), "c.png": b"", "d.png": b""}
    rows = ["d.png,oak", "a.png,oak", "b.png,oak", "none.png,oak", "c.png,oak"]
    found = told(planted(images, rows))
    assert found == [
        ("missing", [5]),
        ("unreadable", [2]),
        ("unreadable", [6]),
        ("duplicate", [3, 4]),
    ]
    kinds = list(MEANINGS)
    assert [kind for kind, _ in found] == sorted((kind for kind, _ in found), key=kinds.index)


def test_result_does_not_depend_on_the_number_of_threads(planted):
    images = {f"{seed}.png": noise(seed % 7) for seed in range(30)}
    rows = [f"{name},class {index % 2}" for index, name in enumerate(images)]
    assert planted(images, rows, threads=1) == planted(images, rows, threads=4)


def test_normalised_images_are_blank_only_if_constant():
    slight = 1e-3 * torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))
    entries = [
        Entry(name, "train", lambda image=image: (image, "3"))
        for name, image in (("plain", torch.full((1, 8, 8), -1.3)), ("slight", slight))
    ]
    found = faults(look(entries, 1))
    assert [(fault.kind, fault.places[0].image) for fault in found] == [("blank", "plain")]
    assert found[0].places[0].label == "3"
