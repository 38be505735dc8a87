"""`halfstep init`: from somebody's images to a run, without a look at the docs."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halfstep.train.config.files import load

QUICK = ["epochs=1", "model.args={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8]}", "data.workers=0"]


def draw(path, number, side=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (side, side + 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def split_folders(root):
    for number in range(30):
        kind = ("cats", "dogs")[number % 2]
        draw(root / ("train" if number < 20 else "valid") / kind / f"{number}.png", number)


def class_folders(root):
    for number in range(30):
        draw(root / ("cats", "dogs")[number % 2] / f"{number}.png", number)


def kaggle_list(root):
    lines = ["filename;species"]
    for number in range(30):
        draw(root / "images" / f"{number}.png", number)
        lines.append(f"{number}.png;{('oak', 'elm')[number % 2]}")
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    (root / "sample_submission.csv").write_text("id,score\n1,0\n")


def list_with_split(root):
    with (root / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label", "split"])
        for number in range(30):
            draw(root / f"{number}.png", number)
            split = "train" if number < 20 else "val"
            writer.writerow([f"{number}.png", ("oak", "elm")[number % 2], split])


def list_with_folds(root):
    with (root / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label", "Fold"])
        for number in range(30):
            draw(root / f"{number}.png", number)
            writer.writerow([f"{number}.png", ("oak", "elm")[number % 2], 9 + number % 3])


def two_lists(root):
    for name, start in (("train_fold0", 0), ("valid_fold0", 20)):
        with (root / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["image", "label"])
            for number in range(start, start + 20 - start // 2):
                draw(root / f"{number}.png", number)
                writer.writerow([f"{number}.png", ("oak", "elm")[number % 2]])


@pytest.mark.parametrize(
    ("made", "train", "valid"),
    [
        (split_folders, 20, 10),
        (class_folders, 24, 6),
        (kaggle_list, 24, 6),
        (list_with_split, 20, 10),
        (list_with_folds, 20, 10),
        (two_lists, 20, 10),
    ],
)
def test_three_commands_lead_from_images_to_a_run(halfstep, made, train, valid):
    root = Path("pets")
    root.mkdir()
    made(root)
    code, out, err = halfstep("init", "pets")
    assert (code, err) == (0, "")
    assert f"2 classes, {train} images to learn from and {valid} for validation, 40 pixels" in out
    assert (made is list_with_folds) == ("of which fold 9 is for validation" in out)
    assert "next: halfstep data check pets.yaml, then halfstep train pets.yaml" in out
    config = load("pets.yaml")
    assert (config.name, config.data.resolution, config.batch_size) == ("pets", 32, 8)
    assert halfstep("data", "check", "pets.yaml")[0] == 0
    code, out, err = halfstep("train", "pets.yaml", "--quiet", "--options", *QUICK)
    assert code == 0, err
    assert "best accuracy" in out


def test_a_list_without_rows_is_refused_in_a_line(halfstep):
    Path("empty.csv").write_text("image,label\n")
    code, _, err = halfstep("init", "empty.csv")
    assert code == 2
    assert "empty.csv lists no image; write one row for each image" in err


def test_what_is_there_stays_unless_told(halfstep):
    split_folders(Path("pets"))
    Path("pets.yaml").write_text("mine\n")
    code, _, err = halfstep("init", "pets")
    assert code == 2
    assert "pets.yaml is there already; write --overwrite" in err
    assert Path("pets.yaml").read_text() == "mine\n"
    assert halfstep("init", "pets", "--overwrite")[0] == 0
    assert halfstep("init", "pets", "--out", "other.yaml")[0] == 0
    assert load("other.yaml").name == "other"


def test_what_cannot_be_trained_on_is_said_in_a_line(halfstep):
    for name, said in (
        ("nowhere", "does not exist; write a folder of images, or a CSV file"),
        ("empty", "holds no images with classes; allowed: a folder for each class"),
    ):
        Path("empty").mkdir(exist_ok=True)
        code, _, err = halfstep("init", name)
        assert (code, len(err.splitlines())) == (2, 1)
        assert said in err
    Path("list.csv").write_text("image,label\ngone.png,oak\n")
    code, _, err = halfstep("init", "list.csv")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "list.csv, row 2: 'gone.png' lies neither beside the file nor" in err
    assert not list(Path().glob("*.yaml"))


def written(code_out_err):
    """Return the files that a message names as written."""
    code, out, err = code_out_err
    assert (code, err) == (0, "")
    lines = re.findall(r"^written: ([^;\n]+?)(?:;|, the split of|$)", out, re.MULTILINE)
    return {name for line in lines for name in line.split(" and ")}


@pytest.mark.parametrize("made", [class_folders, kaggle_list, list_with_folds, split_folders])
def test_each_config_has_a_split_of_its_own_and_the_messages_name_what_is_written(halfstep, made):
    Path("pets").mkdir()
    made(Path("pets"))
    before = {each for each in Path().rglob("*") if each.is_file()}
    for arguments, name in ([], "pets"), (["--out", "below/second.yaml"], "below/second"):
        told = written(halfstep("init", "pets", *arguments))
        files = {each for each in Path().rglob("*") if each.is_file()}
        assert {str(each) for each in files - before} == told
        lists = set() if made is split_folders else {f"{name}_train.csv", f"{name}_valid.csv"}
        assert told == {f"{name}.yaml", *lists}
        before = files
    for file, config in ("pets_train.csv", "pets.yaml"), ("below/second_valid.csv", "second.yaml"):
        if made is not split_folders:
            assert load(str(Path(file).with_name(config))).data.train.ann_file in map(str, before)


def test_a_split_that_is_there_is_kept_and_the_config_is_named(halfstep):
    class_folders(Path("pets"))
    Path("second_valid.csv").write_text("mine\n")
    code, out, err = halfstep("init", "pets", "--out", "second.yaml")
    assert (code, out) == (2, "")
    assert "error: second_valid.csv, for the split of second.yaml, is there already; write" in err
    assert "--overwrite to replace it, or --out FILE" in err
    assert not Path("second.yaml").exists()
    assert Path("second_valid.csv").read_text() == "mine\n"
    assert halfstep("init", "pets", "--out", "second.yaml", "--overwrite")[0] == 0


def test_the_list_that_is_split_is_never_replaced(halfstep):
    kaggle_list(Path("pets"))
    listed = Path("pets/all_train.csv")
    listed.write_text(Path("pets/labels.csv").read_text())
    before = listed.read_text()
    code, _, err = halfstep("init", listed, "--out", "pets/all.yaml", "--overwrite")
    assert (code, listed.read_text()) == (2, before)
    assert "pets/all_train.csv, for the split of pets/all.yaml, is there already; write" in err
    assert "--overwrite" not in err


def test_a_refused_set_leaves_no_file(halfstep):
    class_folders(Path("pets"))
    draw(Path("pets/nan/0.png"), 0)
    before = sorted(Path().rglob("*"))
    code, _, err = halfstep("init", "pets")
    assert code == 2
    assert "which stands for a missing label" in err
    assert sorted(Path().rglob("*")) == before


def test_a_folder_with_the_split_of_an_earlier_config_is_not_split_again(halfstep):
    kaggle_list(Path("pets"))
    halfstep("init", "pets", "--out", "pets/first.yaml")
    code, out, _ = halfstep("init", "pets", "--out", "pets/again.yaml")
    assert code == 0
    assert "found: images listed by pets/first_train.csv and pets/first_valid.csv" in out


INIT = """
import sys
from halfstep.cli import main

for place, wanted in ("pets", 0), ("pets", 2), ("nowhere", 2), ("empty", 2):
    assert main(["init", place]) == wanted, place
    assert "torch" not in sys.modules, place
print("modules", len(sys.modules))
"""


def test_images_are_inspected_without_torch(halfstep):
    class_folders(Path("pets"))
    Path("empty").mkdir()
    arguments = [sys.executable, "-c", INIT]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 800  # with torch and scikit-learn: more than 3,000
