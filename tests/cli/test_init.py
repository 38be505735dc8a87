"""`halfstep init`: from somebody's images to a run, without a look at the docs."""

import csv
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
