"""What is wrong with a data set is said by `init`, `data` and `train` alike."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

QUICK = ["epochs=1", "model.args={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8]}", "data.workers=0"]
NFC, NFD = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))


def draw(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def touch(*names):
    for name in map(Path, names):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.touch()


def split_folders(classes=("cats", "dogs")):
    for number in range(30):
        split = "train" if number < 20 else "val"
        draw(Path("pets") / split / classes[number % 2] / f"{number}.png", number)


def class_folders(classes=("cats", "dogs")):
    for number in range(30):
        draw(Path("pets") / classes[number % 2] / f"{number}.png", number)


def lists(labels=("oak", "elm"), name="{}"):
    for split, numbers in (("train", range(20)), ("val", range(20, 30))):
        lines = ["image,label"]
        for number in numbers:
            draw(Path("pets") / f"{number}.png", number)
            lines.append(f"{name.format(number)}.png,{labels[number % 2]}")
        Path(f"pets/{split}.csv").write_text("\n".join(lines) + "\n")


def commands(halfstep, *options):
    """Run init, data check and train; return the code and all output of each."""
    said = {}
    for name, arguments in (
        ("init", ("init", "pets")),
        ("check", ("data", "check", "pets.yaml", "--options", *QUICK, *options)),
        ("train", ("train", "pets.yaml", "--quiet", "--options", *QUICK, *options)),
    ):
        code, out, err = halfstep(*arguments)
        said[name] = (code, out + err)
    return said


def test_hidden_files_are_ignored_and_counted_in_one_line(halfstep):
    split_folders()
    junk = [".ipynb_checkpoints/0.png", "cats/._0.png", "dogs/.DS_Store", "dogs/Thumbs.db"]
    touch(*(f"pets/train/{name}" for name in junk), "pets/val/__MACOSX/cats/1.png")
    line = (
        "pets: 5 hidden files and folders ignored: "
        ".DS_Store 1, ._* 1, .ipynb_checkpoints 1, Thumbs.db 1, __MACOSX 1"
    )
    for code, said in commands(halfstep).values():
        assert (code, said.count(line)) == (0, 1)
    code, out, _ = halfstep("data", "check", "pets.yaml", "--json")
    told = json.loads(out)
    assert (code, told["images"], [fault["kind"] for fault in told["faults"]]) == (
        0,
        30,
        ["hidden"],
    )


def test_hidden_files_in_folders_that_init_splits_are_no_images(halfstep):
    class_folders()
    touch("pets/cats/._0.png", "pets/.ipynb_checkpoints/0.png", "pets/cats/.x/1.png")
    code, out, err = halfstep("init", "pets")
    assert code == 0
    assert "2 classes, 24 images to learn from and 6 for validation" in out
    assert err == (
        "warning: pets: 3 hidden files and folders ignored: ._* 1, .ipynb_checkpoints 1, .x 1\n"
    )


def test_hidden_lists_and_folders_beside_a_list_are_ignored(halfstep):
    lists()
    text = Path("pets/train.csv").read_text()
    Path("pets/.train.csv").write_text(text.replace("oak", "ash"))
    code, out, _ = halfstep("init", "pets")
    assert code == 0
    assert ".train.csv" not in out
    for name in ("train.csv", "val.csv", ".train.csv"):
        Path("pets", name).rename(Path(name))
    Path("pets").rename(".pets")
    code, _, err = halfstep("init", "train.csv")
    assert (code, "lies neither beside the file nor in a folder" in err) == (2, True)


def test_formats_that_are_not_read_are_named_with_their_number(halfstep):
    split_folders()
    touch(*(f"pets/train/cats/{number}.gif" for number in range(12)), "pets/train/cats/about.txt")
    line = "pets: 12 files of formats that are not read: .gif 12; convert to PNG or JPEG"
    said = commands(halfstep)
    assert [said[name][0] for name in ("init", "check", "train")] == [0, 2, 0]
    for _, output in said.values():
        assert output.count(line) == 1
    assert "format: files in the folders of images that training does not read" in said["check"][1]


def test_folders_of_other_formats_alone_are_refused_with_their_number(halfstep):
    touch(*(f"pets/{name}/{number}.gif" for name in ("cats", "dogs") for number in range(6)))
    code, _, err = halfstep("init", "pets")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "it has 12 files of formats that are not read: .gif 12; convert" in err
    split_folders(("eels", "dogs"))
    touch("pets/train/cats/1.heic")
    code, _, err = halfstep("init", "pets")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "train/cats holds no image" in err
    assert "pets has 1 file of a format that is not read: .heic 1" in err


@pytest.mark.parametrize("made", [split_folders, class_folders, lists])
def test_classes_that_differ_only_in_case_are_warned_of_with_both_names(halfstep, made):
    made(("Cat", "cat"))
    said = commands(halfstep)
    assert [said[name][0] for name in ("init", "check", "train")] == [0, 2, 0]
    for _, output in said.values():
        assert output.count("differ only in case or Unicode form: 'Cat' and 'cat'; merge them") == 1


def test_a_list_and_its_folds_name_classes_that_differ_only_in_case(halfstep):
    lists(("Cat", "cat"))
    for command in (("folds", "pets/train.csv"), ("check", "--csv", "pets/train.csv")):
        assert "'Cat' and 'cat'; merge" in "".join(halfstep("data", *command)[1:])


def test_names_that_match_only_after_normalisation_are_read_and_warned_of(halfstep):
    lists(name=f"{NFC}{{}}")
    for file in Path("pets").glob("*.png"):
        file.rename(file.with_name(f"{NFD}{file.name}"))
    if Path("pets", f"{NFC}0.png").exists():
        pytest.skip("this file system does not tell the forms apart")
    said = commands(halfstep)
    assert [said[name][0] for name in ("init", "check", "train")] == [0, 2, 0]
    for _, output in said.values():
        assert "train.csv: 20 images have another case or Unicode form on disk: row 2 " in output
        assert r"('\xe90.png', on disk 'e\u03010.png'), row 3" in output
        assert "missing" not in output
    code, _, err = halfstep("data", "folds", "pets/train.csv", "--k", "2")
    assert (code, "20 images have another" in err) == (0, True)
    assert (
        f"{NFD}0.png" in Path("train_fold0.csv").read_text() + Path("valid_fold0.csv").read_text()
    )
    assert halfstep("data", "check", "--csv", "train_fold0.csv", "--root", "pets")[0] == 0


def test_names_of_another_form_are_listed_beside_missing_images(halfstep):
    lists()
    with Path("pets/train.csv").open("a") as file:
        file.write("1.PNG,oak\nnone.png,oak\n")
    for where in ("pets.yaml", "--csv"):
        if where == "pets.yaml":
            Path(where).write_text(
                "epochs: 1\nbatch_size: 4\nmodel: {name: resnet18}\n"
                "optimizer: {name: sgd, lr: 0.1}\nschedule: {name: constant}\n"
                "data: {name: csv, root: pets, val: {ann_file: val.csv}}\n"
            )
        arguments = [where] if where == "pets.yaml" else ["--csv", "pets/train.csv"]
        code, out, _ = halfstep("data", "check", *arguments, "--json")
        kinds = [fault["kind"] for fault in json.loads(out)["faults"]]
        assert (code, kinds) == (2, ["spelling", "missing", "conflict"])


@pytest.mark.parametrize("label", ["", " ", "nan", "NaN", "<NA>", "#N/A"])
def test_a_missing_label_is_a_fault_with_its_file_and_row(halfstep, label):
    lists(("oak", label))
    said = f"{label.strip()!r} for a missing label" if label.strip() else "has no label"
    code, _, err = halfstep("init", "pets")
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"pets/train.csv, row 3: '1.png,{label.strip()}' has" in err
    assert said in err
    for command in ("folds", "check"):
        flag = ["--csv"] if command == "check" else []
        code, out, err = halfstep("data", command, *flag, "pets/train.csv")
        assert code == 2
        assert "pets/train.csv, row 3: " in out + err
    assert "pets/train.csv, row 21: " in out


def test_a_folder_for_missing_labels_is_no_class(halfstep):
    class_folders(("cats", "nan"))
    code, _, err = halfstep("init", "pets")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "a class has the name 'nan', which stands for a missing label; rename" in err


def test_a_batch_that_is_larger_than_the_training_set_is_refused_with_both_numbers(halfstep):
    split_folders()
    assert halfstep("init", "pets")[0] == 0
    line = "batch_size is 21, but the training set has 20 images; write --options batch_size=8, or"
    for command in (["data", "check", "pets.yaml"], ["train", "pets.yaml", "--quiet"]):
        code, out, err = halfstep(*command, "--options", *QUICK, "batch_size=21")
        assert code == 2
        assert line in out + err
        assert len(err.splitlines()) == 1
    code, _, err = halfstep("train", "pets.yaml", "--options", *QUICK, "accumulate=3")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "accumulate is 3 and batch_size is 8, but the training set has 20 images, which " in err
    assert not Path("runs").exists()


def test_init_proposes_a_batch_for_very_few_images(halfstep):
    for number in range(8):
        split = "train" if number < 5 else "val"
        draw(Path("pets") / split / ("cats", "dogs")[number % 2] / f"{number}.png", number)
    for code, said in commands(halfstep).values():
        assert code == 0, said
    assert "batch_size: 4\n" in Path("pets.yaml").read_text()
