import unicodedata
from pathlib import Path

import pytest

from halfstep.train.data.sources import row_files
from halfstep.train.data.sources.csv_rows import CsvRow

NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


def located(root, *images):
    rows = [CsvRow(number, image, "oak", "") for number, image in enumerate(images, 2)]
    return row_files.locate("train.csv", rows, root)


@pytest.mark.parametrize(
    ("listed", "on_disk"),
    [
        (f"{NFC}.png", f"{NFD}.png"),
        (f"{NFD}.png", f"{NFC}.png"),
        (f"{NFC}/1.png", f"{NFD}/1.png"),
        ("images/IMG_1.JPG", "images/img_1.jpg"),
        (f"./a/../a/{NFC}.png", f"a/{NFD}.png"),
    ],
)
def test_a_file_is_found_under_another_spelling_and_both_are_named(tmp_path, listed, on_disk):
    (tmp_path / on_disk).parent.mkdir(exist_ok=True)
    (tmp_path / on_disk).touch()
    if (tmp_path / listed).exists():
        pytest.skip("this file system does not tell the spellings apart")
    found = located(tmp_path, listed)
    assert found.missing == []
    assert (tmp_path / found.rows[0].image).samefile(tmp_path / on_disk)
    assert found.rows[0].number == 2
    (notice,) = found.notices()
    assert notice.kind == "spelling"
    assert notice.text.startswith(
        "train.csv: 1 image has another case or Unicode form on disk: row 2"
    )
    for name in (listed, found.rows[0].image):
        assert repr(name) in notice.text or ascii(name) in notice.text
    assert listed.isascii() or r"\xe9" in notice.text


def test_absolute_paths_are_found_too(tmp_path):
    (tmp_path / "a.png").touch()
    found = located(tmp_path / "elsewhere", str(tmp_path / "A.png"))
    assert found.rows[0].image == str(tmp_path / "a.png")


def test_two_files_that_may_be_meant_are_none(tmp_path):
    for name in ("a.png", "A.png"):
        (tmp_path / name).touch()
    found = located(tmp_path, "a.PNG", "a.png", "A.png", "b.png", "none/a.png", "x" * 300)
    assert [row.number for row in found.missing] == [2, 5, 6, 7]
    assert found.respelled == []
    assert found.notices() == ()


def test_folders_are_listed_only_for_missing_files_and_once(tmp_path, monkeypatch):
    for number in range(9):
        (tmp_path / f"{number}.png").touch()
    lists = []
    of = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: lists.append(folder) or of(folder))
    assert located(tmp_path, *(f"{number}.png" for number in range(9))).missing == []
    assert lists == []
    assert len(located(tmp_path, *(f"{number}.PNG" for number in range(9))).respelled) == 9
    assert lists == [tmp_path]
