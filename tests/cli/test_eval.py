import json

import pytest
from PIL import Image

from halfstep.train.store import checkpoint

RUN = "runs/digits/fp32-seed0"


def test_accuracy_and_loss_are_as_the_run_recorded(halfstep, run):
    summary = json.loads((run / "summary.json").read_text())
    code, out, _ = halfstep("eval", run)
    assert code == 0
    assert f"{RUN} (best, epoch 1): accuracy {summary['best_accuracy']:.2%}, loss" in out
    assert out.endswith("as the run recorded\n")
    code, out, _ = halfstep("eval", run, "--checkpoint", "last", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["matches"] is True
    assert result["measured"]["loss"] == summary["final_val_loss"]


def test_other_figures_than_recorded_exit_with_1(halfstep, run):
    file = checkpoint.path(run, "best")
    stored = checkpoint.load(file)
    stored.model["fc.bias"][0] += 9
    checkpoint.save(file, stored)
    code, out, _ = halfstep("eval", run)
    assert code == 1
    assert "but the run recorded" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "'nowhere' is not a run directory: it does not exist; write"),
        ([RUN, "--checkpoint", "worst"], "Invalid value for '--checkpoint'"),
        ([RUN, "--device", "cuda:99"], "device is 'cuda:99'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(halfstep, run, arguments, said):
    code, _, err = halfstep("eval", *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_damaged_checkpoint_is_one_line_and_exit_code_2(halfstep, run):
    file = checkpoint.path(run, "best")
    file.write_bytes(file.read_bytes()[:1000])
    code, _, err = halfstep("eval", run)
    assert code == 2
    assert "is damaged or not a checkpoint of halfstep" in err
    assert err.count("\n") == 1


def test_list_of_images_is_evaluated_without_a_record(halfstep, run, tmp_path):
    Image.new("L", (8, 8), 0).save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_text("no image")
    (tmp_path / "images.csv").write_text("image,label\na.png,3\na.png,5\n")
    code, out, _ = halfstep("eval", run, "--data", "images.csv", "--out", "tables")
    assert code == 0
    assert f"{RUN} (best, epoch 1): accuracy " in out
    assert "recorded" not in out
    assert ", macro-F1 " in out
    assert ", lowest recall 0.00% (5)" in out or ", lowest recall 0.00% (3)" in out
    assert (tmp_path / "tables" / "confusion.csv").is_file()
    assert len((tmp_path / "tables" / "classes.csv").read_text().splitlines()) == 11
    (tmp_path / "images.csv").write_text("image,label\na.png,3\nbroken.png,5\n")
    code, out, err = halfstep("eval", run, "--data", "images.csv", "--json")
    assert code == 1
    found = json.loads(out)
    assert found["matches"] is None
    assert found["recall"] == {"3": found["measured"]["accuracy"]}
    assert "left out: images.csv, row 3: broken.png is not an image" in err


def test_columns_are_those_of_the_run_or_of_the_flag(halfstep, run, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "images.csv").write_text("file;digit\na.png;3\n")
    arguments = ("eval", run, "--data", "images.csv")
    code, _, err = halfstep(*arguments)
    assert (code, "--columns image=file" in err) == (2, True)
    assert halfstep(*arguments, "--columns", "image=file,label=digit")[0] == 0
    config = tmp_path / run / "config.yaml"
    text = config.read_text()
    start, end = text.index("data:"), text.index("model:")
    columns = "data: {name: csv, resolution: 8, columns: {image: File, label: digit}}\n"
    config.write_text(text[:start] + columns + text[end:])
    assert halfstep(*arguments)[0] == 0


def test_label_that_the_run_does_not_know_is_one_line_and_exit_code_2(halfstep, run, tmp_path):
    (tmp_path / "images.csv").write_text("image,label\na.png,ten\n")
    code, _, err = halfstep("eval", run, "--data", "images.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "images.csv, row 2: a.png: the run knows no class 'ten'" in err
