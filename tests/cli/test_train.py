import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.train.loop import loop
from halfstep.train.processes.launch import LAUNCHER
from halfstep.yaml_text import parse


def summary(run):
    return json.loads((Path(run) / "summary.json").read_text())


def test_run_as_documented(halfstep, tiny_arguments):
    code, out, _ = halfstep(
        "train", "digits", "--recipe", "bf16", "--tag", "x", *tiny_arguments, "optimizer.lr=0.02"
    )
    assert code == 0
    config = parse(Path("runs/digits/x/config.yaml").read_text(), "config")
    assert (config["recipe"], config["optimizer"]["lr"], config["epochs"]) == ("bf16", 0.02, 1)
    assert (summary("runs/digits/x")["recipe"], summary("runs/digits/x")["tag"]) == ("bf16", "x")
    *progress, report, last = out.splitlines()
    assert progress == Path("runs/digits/x/log.txt").read_text().splitlines()
    assert report.startswith("digits bf16 seed 0: best accuracy ")
    assert last == "run: runs/digits/x"


def test_directory_is_by_recipe_and_seed_or_exactly_out(halfstep, tiny_arguments):
    assert halfstep("train", "digits", "--seed", 3, *tiny_arguments)[0] == 0
    assert summary("runs/digits/fp32-seed3")["seed"] == 3
    assert halfstep("train", "digits", "--out", "a/b", *tiny_arguments)[0] == 0
    assert summary("a/b")["status"] == "finished"


def test_resolved_config_of_a_run_is_itself_a_config(halfstep, tiny_arguments):
    assert halfstep("train", "digits", "--out", "first", *tiny_arguments)[0] == 0
    assert halfstep("train", "first/config.yaml", "--out", "second")[0] == 0
    assert Path("first/config.yaml").read_text() == Path("second/config.yaml").read_text()
    assert summary("first")["final_val_loss"] == summary("second")["final_val_loss"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digit"], "no config is named 'digit'; allowed: .*did you mean 'digits'"),
        (["no/such.yaml"], "no config file at 'no/such.yaml'; .*shipped configs: .*digits"),
        (["digits", "--options", "optimizer.lrr=1"], "did you mean 'optimizer.lr'"),
        (["digits", "--options", "epochs=few"], "epochs is 'few'; allowed: a valid integer"),
        (["digits", "--options", "epochs"], "--options takes key=value, not 'epochs'"),
        (["digits", "--options", "epochs=[1"], "--options epochs=.1 is not valid YAML"),
        (["digits", "--recipe", "fp61"], "no recipe is named 'fp61'.*did you mean 'fp16'"),
        (["digits", "--recipe", "fp16+bf16"], "'fp16' and 'bf16' disagree on autocast"),
        (["digits", "--options", "model.name=resnet81"], "did you mean 'resnet18'"),
        (["digits", "--tag", "a/b"], "--tag is 'a/b'; allowed: letters"),
        (["digits", "--device", "gpu"], "'gpu' is not a device; allowed: auto, cpu, cuda"),
        (["digits", "--device", "cuda:99"], "device is 'cuda:99'.*allowed: cpu.*write --device"),
        (["digits", "--out", "file/run"], "cannot write the run directory 'file/run': Not a dir"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_trace(halfstep, tmp_path, arguments, said):
    (tmp_path / "file").touch()
    code, out, err = halfstep("train", *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(said, err), err
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_finished_run_of_another_config_is_kept_unless_overwritten(halfstep, tiny_arguments):
    assert halfstep("train", "digits", *tiny_arguments)[0] == 0
    code, _, err = halfstep("train", "digits", *tiny_arguments, "log_every=1")
    assert code == 2
    assert "write --out with another directory to keep both, or --overwrite" in err
    assert halfstep("train", "digits", "--overwrite", *tiny_arguments, "log_every=1")[0] == 0


def test_run_is_not_replaced_without_a_word(halfstep, tiny_arguments):
    arguments = ("train", "digits", "--out", "run", *tiny_arguments)
    assert halfstep(*arguments)[0] == 0
    kept = {each: each.read_bytes() for each in Path("run").rglob("*") if each.is_file()}
    code, out, err = halfstep(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        f"error: the run directory '{Path.cwd() / 'run'}' holds a finished run; write --resume "
        "auto to take its result, --out with another directory to keep both, or --overwrite to "
        "replace it\n",
        err,
    )
    Path("run/summary.json").unlink()
    code, _, err = halfstep(*arguments)
    assert code == 2
    assert "the checkpoints of a run that has not finished; write --resume auto" in err
    for file, content in kept.items():
        assert file.name in {"summary.json", ".lock"} or file.read_bytes() == content
    assert halfstep(*arguments, "--resume", "auto")[0] == 0
    assert halfstep(*arguments, "--overwrite")[0] == 0
    assert not Path("run/replaced").exists()


def test_second_run_in_a_directory_is_refused_while_the_first_trains(
    halfstep, tiny_arguments, monkeypatch
):
    real, second = loop.validate, []

    def start_another(setup):
        if not second:
            arguments = ("train", "digits", "--out", "run", "--overwrite", *tiny_arguments)
            second.append("started")
            second[:] = halfstep(*arguments, "seed=1")
        return real(setup)

    monkeypatch.setattr(loop, "validate", start_another)
    assert halfstep("train", "digits", "--out", "run", *tiny_arguments)[0] == 0
    code, _, err = second
    assert code == 2
    assert re.search(rf"'run' is in use: process {os.getpid()} on \S+ trains in it; wait for", err)
    assert summary("run")["seed"] == 0
    assert parse(Path("run/config.yaml").read_text(), "config")["seed"] == 0


def test_run_that_goes_nan_exits_with_1_and_says_so(halfstep, tiny_arguments):
    code, out, err = halfstep(
        "train", "digits", *tiny_arguments, "optimizer.lr=1e30", "log_every=1"
    )
    assert code == 1
    assert "no epoch finished" in out
    assert err.startswith("nonfinite: the loss was not finite at step 2")
    assert "the run is in 'runs/digits/fp32-seed0'" in err
    assert summary("runs/digits/fp32-seed0")["status"] == "nonfinite"


def test_ctrl_c_in_the_middle_exits_with_130_and_leaves_no_half_file(
    halfstep, tiny_arguments, monkeypatch, tmp_path
):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "validate", stop)
    code, _, err = halfstep("train", "digits", *tiny_arguments)
    assert code == 130
    assert err == (
        "interrupted in epoch 1; the run is in 'runs/digits/fp32-seed0'; no epoch was finished\n"
    )
    assert not Path("runs/digits/fp32-seed0/summary.json").exists()
    assert not list(tmp_path.rglob("*.tmp"))


class Killed(BaseException):
    """What no code catches, as SIGKILL."""


@pytest.mark.parametrize("wanted", [["--resume", "auto"], ["--resume"], ["--resume", "RUN"]])
def test_resume_goes_on_where_the_run_was_killed(
    halfstep, tiny_arguments, monkeypatch, wanted, tmp_path
):
    run = Path("runs/digits/fp32-seed0")
    arguments = [*tiny_arguments, "epochs=2"]
    assert halfstep("train", "digits", "--out", "whole", *arguments)[0] == 0
    real, calls = loop.validate, []

    def die(setup):
        calls.append(None)
        if len(calls) == 2:
            raise Killed
        return real(setup)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", die)
        with pytest.raises(Killed):
            halfstep("train", "digits", *arguments)
    assert not (run / "summary.json").exists()
    wanted = [str(run) if each == "RUN" else each for each in wanted]
    code, out, _ = halfstep("train", "digits", *wanted, "--tag", "fp32-seed0", *arguments)
    assert code == 0
    assert out.endswith(f"run: {run}\n")
    assert summary(run)["final_val_loss"] == summary("whole")["final_val_loss"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_signal_saves_and_exits_with_its_code(halfstep, tiny_arguments, monkeypatch, number, code):
    real = loop.validate

    def asked(setup):
        os.kill(os.getpid(), number)
        return real(setup)

    monkeypatch.setattr(loop, "validate", asked)
    exit_code, _, err = halfstep("train", "digits", *tiny_arguments)
    assert exit_code == code
    assert err == (
        "interrupted in epoch 1; the run is in 'runs/digits/fp32-seed0'; no epoch was finished; "
        "--resume auto continues from step-00000006.pt\n"
    )
    monkeypatch.undo()


def test_damaged_checkpoint_is_one_line_of_warning(halfstep, tiny_arguments):
    arguments = [*tiny_arguments, "epochs=2"]
    assert halfstep("train", "digits", *arguments)[0] == 0
    Path("runs/digits/fp32-seed0/summary.json").unlink()  # as if the run had been killed
    newest = Path("runs/digits/fp32-seed0/checkpoints/step-00000012.pt")
    newest.write_bytes(newest.read_bytes()[:-1])
    code, _, err = halfstep("train", "digits", "--resume", "auto", *arguments)
    assert code == 0
    assert re.fullmatch(r"warning: .*step-00000012\.pt' is damaged.*from step-00000006\.pt\n", err)


def test_resume_of_another_config_or_of_nothing_is_refused(halfstep, tiny_arguments):
    assert halfstep("train", "digits", *tiny_arguments)[0] == 0
    code, _, err = halfstep("train", "digits", "--resume", "auto", *tiny_arguments, "clip_norm=1")
    assert code == 2
    assert "made with clip_norm=null, and the config says 1.0; write the same" in err
    code, _, err = halfstep("train", "digits", "--resume", "runs/other", *tiny_arguments)
    assert code == 2
    assert "--resume is 'runs/other', which does not exist; allowed: auto" in err


def test_fp16_is_what_the_posts_type(halfstep, tiny_arguments):
    arguments = ["--tag", "resnet_fp16", *tiny_arguments, "fp16=True", "max_steps=2"]
    assert halfstep("train", "digits", *arguments)[0] == 0
    found = summary("runs/digits/resnet_fp16")
    assert (found["recipe"], found["steps"]) == ("fp16", 2)


def test_early_end_in_good_order_is_said(halfstep, tiny_arguments):
    arguments = [*tiny_arguments, "epochs=9", "optimizer.lr=1e-9", "early_stopping.patience=1"]
    code, out, _ = halfstep("train", "digits", *arguments)
    assert code == 0
    assert "stopped early: the validation accuracy has not been better than" in out


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_a_run_ends_with_the_comparison_that_started_it(processes, tmp_path):
    # The one that is named has ended already, as it is not this process.
    late = {**os.environ, LAUNCHER: "0"}
    program = [sys.executable, "-m", "halfstep", "train", "digits", *processes]
    done = subprocess.run(program, env=late, check=False, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("available", [False, True])
def test_more_gpus_than_there_are_start_no_process(halfstep, monkeypatch, available):
    def launched(*_, **__):
        raise AssertionError("processes were started")

    monkeypatch.setattr("halfstep.train.processes.launch.launch", launched)
    monkeypatch.setattr("torch.cuda.is_available", lambda: available)
    monkeypatch.setattr("torch.cuda.device_count", lambda: int(available))
    code, _, err = halfstep("train", "digits", "--gpus", "99")
    assert (code, err.count("\n")) == (2, 1)
    assert ("there are 1; write" if available else "cuda") in err


def test_an_observer_that_cannot_be_made_is_one_line(halfstep):
    code, _, err = halfstep("train", "digits", "--options", "observers=[import:os:system]")
    assert (code, err.count("\n")) == (2, 1)
    assert "observers has 'import:os:system', which fails when it is made: TypeError" in err
