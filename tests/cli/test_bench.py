import json
import re
from pathlib import Path

import pytest

from halfstep.bench import launch, loader
from halfstep.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["loader", "digit"], "did you mean 'digits'"),
        (["loader", "digits", "--workers", "few"], "--workers is 'few'; allowed: whole numbers"),
        (["threads", "digits", "--threads", "0,1"], "--threads is '0,1'; allowed: numbers from 1"),
        (["step", "digits", "--recipes", "fb16"], "no recipe is named 'fb16'"),
        (["step", "digits", "--options", "epochs=few"], "epochs is 'few'"),
        (["launch", "digits", "--options", "model.args.layer=1"], "timm.s resnet18 refuses"),
        (["launch", "digits", "--rounds", "0"], "'--rounds'"),
        (["loader", "digits", "--out", "taken/below"], "taken is a file; name a directory"),
        (["loader", "digits", "--device", "gpu"], "'gpu' .*allowed: auto, cpu"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(halfstep, tmp_path, arguments, said):
    Path("taken").touch()
    code, out, err = halfstep("bench", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert re.search(said, err), err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def results(bench):
    return json.loads(Path(f"runs/bench/digits-{bench}/results.json").read_text())


def test_the_loader_is_measured_printed_and_kept(halfstep, tiny_arguments):
    flags = ["--workers", "0,1", "--steps", "4", "--rounds", "2"]
    code, out, err = halfstep("bench", "loader", "digits", *flags, *tiny_arguments)
    assert code == 0
    found = results("loader")
    assert out.splitlines()[-1] == found["recommendation"]
    assert "results.json and report.html are in runs/bench/digits-loader" in out
    assert f"{found['rows']['0']['figure']['median']:.0f}" in out
    assert err.count("\n") == 4
    assert "[4/4] round 2 of 2, data.workers=1: " in err
    assert found["environment"]["device"] == found["device"] == "cpu"
    assert Path("runs/bench/digits-loader/report.html").is_file()


def test_a_step_is_taken_apart_quietly_into_a_folder_of_ones_own(halfstep, tiny_arguments):
    flags = ["--recipes", "fp32,fp16", "--steps", "3", "--warmup", "1", "--rounds", "1"]
    flags += ["--out", "mine", "--quiet"]
    code, out, err = halfstep("bench", "step", "digits", *flags, *tiny_arguments)
    assert (code, err) == (0, "")
    for part in ("data wait", "prepare", "forward", "backward", "optimizer", "rest"):
        assert len(re.findall(rf"^(?:fp32|fp16 †) +{part} ", out, re.MULTILINE)) == 2
    assert out.splitlines()[-1].startswith("recipe=")
    assert sorted(path.name for path in Path("mine").iterdir()) == ["report.html", "results.json"]


def test_threads_are_set_in_processes_of_their_own(halfstep, tiny_arguments):
    flags = ["--threads", "1", "--steps", "2", "--rounds", "1"]
    code, out, _ = halfstep("bench", "threads", "digits", *flags, *tiny_arguments)
    assert code == 0
    found = results("threads")
    assert found["rows"]["1"]["rounds"][0] > 0
    assert found["quantity"] == "seconds of 2 steps"
    assert out.splitlines()[-1] == "OMP_NUM_THREADS=1: no larger value was tried"


def test_both_ways_to_launch_take_turns(halfstep, tiny_arguments, monkeypatch):
    seen = []

    def seconds(config, way, processes):
        seen.append((way, processes))
        return {"spawn": 3.0, "torchrun": 6.0}[way]

    monkeypatch.setattr(launch, "seconds_to_first_step", seconds)
    flags = ["--processes", "3", "--rounds", "2"]
    code, out, _ = halfstep("bench", "launch", "digits", *flags, *tiny_arguments)
    assert code == 0
    assert seen == [("spawn", 3), ("torchrun", 3)] * 2
    assert out.splitlines()[-1] == "spawn: no other is faster"
    assert results("launch")["rows"]["torchrun"]["speed"]["median"] == 0.5


def test_an_interruption_leaves_the_results_that_were_there(halfstep, tiny_arguments, monkeypatch):
    command = ["bench", "loader", "digits", "--workers", "0", "--steps", "1", *tiny_arguments]
    assert halfstep(*command)[0] == 0
    folder = Path("runs/bench/digits-loader")
    before = {path: path.read_bytes() for path in folder.iterdir()}

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loader, "images_per_second", interrupted)
    code, out, err = halfstep(*command)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted; nothing was written"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_without_a_command_it_says_which_there_are(capsys):
    assert main(["bench"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("loader", "threads", "launch", "step"))
