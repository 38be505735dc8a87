import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (8, 10, 3), dtype=np.uint8)


@pytest.fixture
def leaves(tmp_path):
    """Twelve images in two classes; nothing is wrong with them."""
    folder = tmp_path / "leaves"
    (folder / "images").mkdir(parents=True)
    lines = ["image,label"]
    for index in range(12):
        Image.fromarray(noise(index)).save(folder / "images" / f"{index}.png")
        lines.append(f"images/{index}.png,{('elm', 'oak')[index % 2]}")
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    return folder


def plant(leaves):
    Image.fromarray(noise(0)).save(leaves / "images" / "copy.png")
    Image.new("RGB", (8, 8), "white").save(leaves / "images" / "white.png")
    with (leaves / "train.csv").open("a") as file:
        file.write("images/copy.png,oak\nimages/white.png,oak\nimages/none.png,elm\n")
    (leaves / "images" / "1.png").write_bytes(b"not a picture")


def test_folds_are_written_to_the_working_directory(halfstep, leaves, tmp_path):
    code, out, _ = halfstep("data", "folds", leaves / "train.csv", "--k", "3")
    assert code == 0
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == [
        f"{name}_fold{number}.csv" for name in ("train", "valid") for number in range(3)
    ]
    assert out.splitlines()[0] == "train_fold0.csv: 8 images, valid_fold0.csv: 4"
    assert len((tmp_path / "train_fold2.csv").read_text().splitlines()) == 9


def test_folds_take_a_seed_a_root_and_a_folder(halfstep, leaves, tmp_path):
    moved = tmp_path / "lists" / "train.csv"
    moved.parent.mkdir()
    (leaves / "train.csv").rename(moved)
    code, _, err = halfstep("data", "folds", moved, "--k", "2")
    assert code == 2
    assert "12 of 12 images do not exist" in err
    texts = []
    for seed in (1, 1, 2):
        arguments = ("--k", "2", "--seed", seed, "--root", leaves, "--out", "new", "--overwrite")
        assert halfstep("data", "folds", moved, *arguments)[0] == 0
        texts.append((tmp_path / "new" / "valid_fold0.csv").read_text())
    assert texts[0] == texts[1] != texts[2]


def test_folds_refuse_to_overwrite(halfstep, leaves, tmp_path):
    (tmp_path / "valid_fold0.csv").write_text("mine")
    code, _, err = halfstep("data", "folds", leaves / "train.csv")
    assert code == 2
    assert err.startswith("error: valid_fold0.csv is there already; write --overwrite")
    assert (tmp_path / "valid_fold0.csv").read_text() == "mine"


def test_folds_tell_of_identical_images(halfstep, leaves):
    Image.fromarray(noise(0)).save(leaves / "images" / "copy.png")
    with (leaves / "train.csv").open("a") as file:
        file.write("images/copy.png,oak\n")
    _, out, _ = halfstep("data", "folds", leaves / "train.csv", "--k", "2")
    assert "identical images, kept together: 1, with different labels: 1; see" in out


@pytest.mark.parametrize("k", ["1", "0", "many"])
def test_folds_want_two_at_least(halfstep, leaves, k):
    code, _, err = halfstep("data", "folds", leaves / "train.csv", "--k", k)
    assert code == 2
    assert "--k" in err


def test_check_finds_nothing_wrong_with_good_data(halfstep, leaves):
    code, out, _ = halfstep("data", "check", "--csv", leaves / "train.csv")
    assert code == 0
    assert out == "images: 12, faults: 0, groups of identical images: 0\n"


def test_check_finds_what_was_planted_and_exits_with_two(halfstep, leaves):
    plant(leaves)
    code, out, err = halfstep("data", "check", "--csv", leaves / "train.csv")
    assert code == 2
    assert err == "error: the data set has faults: 4, listed on standard output\n"
    rows = [line.split() for line in out.splitlines()]
    assert ["missing", "train.csv", "row", "16", "images/none.png", "elm"] in [
        row[:6] for row in rows
    ]
    assert ["unreadable", "train.csv", "row", "3", "images/1.png", "oak"] in [
        row[:6] for row in rows
    ]
    assert ["conflict", "train.csv", "row", "2", "images/0.png", "elm"] in [row[:6] for row in rows]
    assert ["train.csv", "row", "14", "images/copy.png", "oak"] in rows
    assert ["blank", "train.csv", "row", "15", "images/white.png", "oak"] in [
        row[:6] for row in rows
    ]
    assert out.endswith("images: 15, faults: 4, groups of identical images: 1\n")


def test_check_of_a_config_finds_the_same(halfstep, leaves, tmp_path):
    plant(leaves)
    config = tmp_path / "leaves.yaml"
    config.write_text(
        "epochs: 1\nbatch_size: 4\nmodel: {name: resnet18}\n"
        "optimizer: {name: sgd, lr: 0.1}\nschedule: {name: constant}\n"
        "data: {name: csv, root: leaves, train: {ann_file: all.csv}}\n"
    )
    header, *rows = (leaves / "train.csv").read_text().splitlines()
    split = [f"{row},{'val' if place < 2 else 'train'}" for place, row in enumerate(rows)]
    (leaves / "all.csv").write_text("\n".join([f"{header},split", *split]))
    code, out, _ = halfstep("data", "check", config, "--json")
    assert code == 2
    by_csv = json.loads(halfstep("data", "check", "--csv", leaves / "train.csv", "--json")[1])
    by_config = json.loads(out)
    assert by_config["images"] == by_csv["images"] == 15
    kinds = [fault["kind"] for fault in by_config["faults"]]
    assert kinds == ["missing", "unreadable", "conflict", "blank"]
    for one, other in zip(by_config["faults"], by_csv["faults"], strict=True):
        rows = [[place["row"] for place in fault["places"]] for fault in (one, other)]
        assert rows[0] == rows[1]


def test_columns_of_other_names_are_named_on_the_command_line(halfstep, leaves):
    lines = (leaves / "train.csv").read_text().splitlines()
    (leaves / "train.csv").write_text("\n".join(["file;species", *lines[1:]]).replace(",", ";"))
    for command in (
        ("folds", leaves / "train.csv", "--k", "2"),
        ("check", "--csv", leaves / "train.csv"),
    ):
        code, _, err = halfstep("data", *command)
        assert code == 2
        assert "--columns image=" in err
        assert halfstep("data", *command, "--columns", "image=file,label=species")[0] == 0
    assert Path("train_fold0.csv").read_text().startswith("image,label\n")


def test_check_tells_what_training_refuses_of_a_list(halfstep, leaves, tmp_path):
    (leaves / "train.csv").write_text("image,label\n")
    code, out, _ = halfstep("data", "check", "--csv", leaves / "train.csv")
    assert code == 2
    assert "train.csv lists no image" in out
    assert out.endswith("images: 0, faults: 1, groups of identical images: 0\n")
    (leaves / "train.csv").write_text("image,label\nimages/0.png,oak\nimages/none.png,oak\n,\n")
    code, out, _ = halfstep("data", "check", "--csv", leaves / "train.csv", "--json")
    told = json.loads(out)
    assert [(fault["kind"], len(fault["places"])) for fault in told["faults"]] == [
        ("refused", 0),
        ("missing", 1),
    ]
    assert "every row has the label 'oak'" in told["faults"][0]["detail"]


def test_check_takes_options(halfstep, leaves, tmp_path):
    config = tmp_path / "leaves.yaml"
    config.write_text(
        "epochs: 1\nbatch_size: 4\nmodel: {name: resnet18}\n"
        "optimizer: {name: sgd, lr: 0.1}\nschedule: {name: constant}\n"
        "data: {name: csv, root: elsewhere, val: {ann_file: val.csv}}\n"
    )
    header, first, *rest = (leaves / "train.csv").read_text().splitlines()
    (leaves / "train.csv").write_text("\n".join([header, *rest]))
    (leaves / "val.csv").write_text(f"{header}\n{first}")
    code, out, _ = halfstep("data", "check", config)
    assert code == 2
    assert "refused" in out
    assert "data.root is 'elsewhere', which does not exist" in out
    code, out, _ = halfstep("data", "check", config, "--options", f"data.root={leaves}")
    assert code == 0
    assert out.startswith("images: 12,")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "neither is given"),
        (("digits", "--csv", "train.csv"), "both are given"),
        (("digits", "--root", "x"), "--root goes with --csv"),
        (("digits", "--columns", "image=x"), "--columns goes with --csv"),
        (("--csv", "train.csv", "--columns", "x=y"), "--columns is 'x=y'; allowed: image"),
        (("--csv", "train.csv", "--options", "seed=1"), "--options changes a CONFIG"),
        (("--csv", "none.csv"), "none.csv cannot be read"),
        (("digit",), "did you mean 'digits'"),
    ],
)
def test_what_check_cannot_do_is_one_line(halfstep, arguments, said):
    code, out, err = halfstep("data", "check", *arguments)
    assert code == 2
    assert not out
    assert said in err
    assert len(err.splitlines()) == 1


def test_both_commands_have_help(halfstep):
    assert halfstep("data") == halfstep("data", "--help")
    assert "folds" in halfstep("data", "--help")[1]
    assert "--overwrite" in halfstep("data", "folds", "--help")[1]
    assert "--csv" in halfstep("data", "check", "--help")[1]


@pytest.mark.skipif("HALFSTEP_TEST_DATA" not in os.environ, reason="HALFSTEP_TEST_DATA is not set")
@pytest.mark.slow
def test_real_leaves_hold_the_duplicates_that_are_known(halfstep):
    file = Path(os.environ["HALFSTEP_TEST_DATA"]) / "classify-leaves" / "train.csv"
    code, out, _ = halfstep("data", "check", "--csv", file, "--json")
    assert code == 2
    kinds = [fault["kind"] for fault in json.loads(out)["faults"]]
    assert kinds.count("conflict") == 16
    assert kinds.count("conflict") + kinds.count("duplicate") == 33
    assert 35 <= kinds.count("blank") <= 50
    assert set(kinds) == {"conflict", "duplicate", "blank"}
