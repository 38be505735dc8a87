import json
from pathlib import Path

import pytest

from halfstep.train import checkpoint

RUN = "runs/digits/fp32-seed0"


@pytest.fixture
def run(halfstep, tiny_arguments):
    assert halfstep("train", "digits", *tiny_arguments)[0] == 0
    return Path(RUN)


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
        (["nowhere"], "'nowhere' is no run directory: it does not exist; write"),
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
    assert "is damaged or no checkpoint of halfstep" in err
    assert err.count("\n") == 1
