import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import warm
from compare.processes import below, is_gone
from halfstep.cli import main
from train.distributed import dying_worker

TINY = ["--options", "epochs=1", "data.resolution=8", "log_every=1"]
TINY += ["model.args={channels: [8, 8, 8, 8]}", "batch_size=256", "--device", "cpu", "--seeds", "1"]


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def cell(recipe, seed=0, root="runs/compare/digits"):
    return Path(root) / f"{recipe}-seed{seed}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digit"], "no config is named 'digit'; .*did you mean 'digits'"),
        (["digits", "--recipes", "fp32,fb16"], "--recipes: no recipe is named 'fb16'"),
        (["digits", "--recipes", "fp32,fp32"], "--recipes .* names fp32 twice"),
        (["digits", "--seeds", "none"], "--seeds is 'none'; allowed: how many"),
        (["digits", "--options", "epoch=1"], "no key is named 'epoch'; .*did you mean 'epochs'"),
        (["digits", "--options", "epochs=few"], "epochs is 'few'"),
        (["digits", "--options", "recipe=fp16"], "--options sets 'recipe', .* write --recipes"),
        (["digits", "--options", "seed=1"], "--options sets 'seed', .* write --seeds"),
        (["digits", "--options", "model.name=resnet1"], "model.name is 'resnet1'"),
        (["digits", "--options", "model.args.layer=1"], "timm.s resnet18 refuses"),
        (["digits", "--device", "gpu"], "'gpu' .*allowed: auto, cpu"),
        (["digits", "--grid", "batch_size"], "--grid takes key=value,value"),
        (["digits", "--grid", "batch=1,2"], "error: --grid: no key is named 'batch'"),
        (["digits", "--grid", "batch_size=32,few"], "error: --grid: batch_size is 'few'"),
        (["digits", "--grid", "model.args={a: [},1"], "error: --grid model.args={a: "),
        (
            ["digits", "--options", "epoch=1", "--grid", "batch_size=1,2"],
            "error: --options: no key is named 'epoch'",
        ),
        (["digits", "--grid", "recipe=fp32,fp16"], "--grid sets 'recipe', .* write --recipes"),
        (["digits", "--grid", "epochs=1,2", "--options", "epochs=3"], "epochs is in --options and"),
        (["digits", "--devices", "cpu,0"], "--devices is 'cpu,0'; allowed: GPU numbers"),
        (["digits", "--devices", "cpu", "--device", "cpu"], "are both given; write one"),
        (["digits", "--processes", "2", "--options", "probes=true"], "write probes=false"),
        (["digits", "--time-limit", "soon"], "--time-limit is 'soon'; allowed: hours"),
        (["digits", "--on", "pbs"], "--on is 'pbs'; allowed: ray"),
        (["digits", "--on", "ray", "--devices", "cpu"], "the cluster picks the devices"),
        (["digits", "--export", "xlsx"], "--export is 'xlsx'; allowed: parquet, png"),
        (["digits", "--tag", "../x"], "--tag is '../x'; allowed: letters"),
        (["digits", "--gpu", "h101"], "no GPU is named 'h101'; allowed: .*did you mean 'h100'"),
        (["digits", "--gpu", "t4,t4"], "--gpu is 't4,t4'; name each GPU once"),
        (["digits", "--out", "taken/below"], "cannot write into taken/below: Not a directory"),
        (["digits", "--out", "thesis"], "thesis contains files that do not belong to a comparison"),
    ],
)
def test_bad_input_is_one_line_before_any_run(arguments, said, capsys):
    Path("taken").touch()
    Path("thesis").mkdir()
    Path("thesis", "chapter").touch()
    before = sorted(Path().rglob("*"))
    assert main(["compare", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert re.search(said, printed.err), printed.err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU where none is")
def test_a_gpu_that_is_not_there_is_one_line(capsys):
    assert main(["compare", "digits", "--device", "cuda"]) == 2
    assert "allowed: cpu; write --device cpu" in capsys.readouterr().err


def compared(*arguments):
    """Run `halfstep compare` in a process whose cells are forked, and return what it printed."""
    ended = warm.run(warm.halfstep, "compare", *arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended.out


def test_two_recipes_on_digits_give_a_table_that_traces_to_their_runs():
    arguments = ["digits", "--recipes", "fp32,bf16", *TINY]
    printed = compared(*arguments)
    assert "[2/2] bf16 seed 0: finished" in printed
    assert "report.html, table.md and comparison.json are in runs/compare/digits" in printed
    assert re.search(r"predicted, H100.*\n(.*\n)+bf16 .* ≈\d", printed)
    for name in ("fp32", "bf16"):  # what a run prints goes to its own file
        progress = (cell(name) / "run" / "log.txt").read_text()
        assert progress.count("\n") == 2
        assert (cell(name) / "stdout.log").read_text().startswith(progress)
        assert not any(line in printed for line in progress.splitlines())

    summaries = {
        name: json.loads((cell(name) / "run" / "summary.json").read_text())
        for name in ("fp32", "bf16")
    }
    document = json.loads(Path("runs/compare/digits/comparison.json").read_text())
    assert [each["summary"] for each in document["cells"]] == list(summaries.values())
    for row in document["rows"]:
        assert row["status"] == "finished"
        for name, spread in row["measures"].items():
            measured = summaries[row["recipe"]]
            for part in name.split("."):
                measured = measured.get(part)
            assert (None if spread is None else spread["mean"]) == measured, name
    predicted = document["predicted"]["h100_sxm"]["rows"]
    assert [row["recipe"] for row in predicted] == ["fp32", "bf16"]
    assert all(row["predicted_seconds"]["value"] > 0 for row in predicted)
    table = Path("runs/compare/digits/table.md").read_text()
    for name, summary in summaries.items():
        assert re.search(rf"\| {name}[ ◆†‡]* \| {100 * summary['best_accuracy']:.2f} \|", table)
    assert r"memory MiB\*" in table

    inodes = [(cell(name) / "run" / "summary.json").stat().st_ino for name in summaries]
    printed = compared(*arguments, "--gpu", "none")
    assert "from an earlier comparison" in printed
    assert "predicted" not in printed
    assert [(cell(name) / "run" / "summary.json").stat().st_ino for name in summaries] == inodes


def test_a_run_that_goes_nonfinite_is_a_row_and_no_failure():
    options = [*TINY, "--options", "optimizer.lr=1e30", "epochs=3"]
    printed = compared("digits", "--recipes", "fp32", "--tag", "hot", *options)
    assert "fp32 nonfinite: " in printed
    (found,) = json.loads(Path("runs/compare/digits-hot/comparison.json").read_text())["cells"]
    assert found["status"] == "nonfinite"
    assert found["summary"]["first_nonfinite_step"] > 1


def test_a_crashed_run_makes_the_exit_code_1_and_the_table_is_printed(capsys, monkeypatch):
    crash = [sys.executable, "-c", "raise SystemError('out of cheese')"]
    monkeypatch.setattr("halfstep.compare.plan.plan.train_command", lambda cell, device: crash)
    assert main(["compare", "digits", "--recipes", "fp32,fp16", *TINY]) == 1
    printed = capsys.readouterr().out
    assert "fp32 crashed: exit code 1: SystemError: out of cheese" in printed
    assert "[2/2] fp16 seed 0: crashed" in printed


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_comparison_ends_its_run_and_leaves_no_half_of_a_result(sent, code):
    arguments = ["compare", "digits", "--recipes", "fp32", *TINY, "--options", "epochs=100000"]
    process = warm.Warm(warm.halfstep, *arguments, session=True)
    metrics = cell("fp32") / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None
        time.sleep(0.05)
    server, run = below(process.pid)
    is_forked = started_as(run) == started_as(server)
    # A terminal's Ctrl-C reaches the whole group, a scheduler's SIGTERM the comparison alone.
    (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
    ended = process.wait(timeout=120)
    assert is_forked
    assert ended.code == code
    if sent == signal.SIGINT:
        assert ended.err.splitlines() == [
            (
                "interrupted; 0 of 1 runs have a result in 'runs/compare/digits'; "
                "the same command continues from there"
            )
        ]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not (cell("fp32") / "run" / "summary.json").exists()
    document = json.loads(Path("runs/compare/digits/comparison.json").read_text())
    assert document["cells"][0]["status"] == "pending"


def started_as(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_cell_of_two_processes_is_one_row():
    arguments = ["compare", "digits", "--recipes", "fp32", *TINY, "--processes", "2"]
    # The two are forked too: the cell's process is forked from one whose launcher does that.
    ended = warm.run(dying_worker.launch, *arguments, "--options", "batch_size=128")
    assert (ended.code, ended.err) == (0, "")
    printed = ended.out
    assert "digits on 2 processes of cpu with " in printed
    document = json.loads(Path("runs/compare/digits/comparison.json").read_text())
    (found,) = document["cells"]
    assert (document["processes"], found["summary"]["processes"]) == (2, 2)
    assert found["status"] == "finished"
    assert found["summary"]["steps"] == 5  # 1347 images in whole batches of twice 128


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc")
def test_neither_a_kill_nor_ctrl_c_leaves_a_process_behind():
    arguments = ["compare", "digits", "--recipes", "fp32,fp16,bf16", "--processes", "2", *TINY]
    process = warm.Warm(warm.halfstep, *arguments, "--options", "epochs=100000", session=True)
    for name in ("fp32", "fp16", "bf16"):
        metrics = cell(name) / "run" / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None
            time.sleep(0.05)
        _server, launcher, *workers = below(process.pid)
        assert len(workers) == 2
        if name == "bf16":
            os.killpg(process.pid, signal.SIGINT)
        else:
            os.kill(workers[1] if name == "fp32" else launcher, signal.SIGKILL)
        assert all(map(is_gone, workers))
    assert process.wait(timeout=120).code == 130
    document = json.loads(Path("runs/compare/digits/comparison.json").read_text())
    assert [each["status"] for each in document["cells"]] == ["crashed", "crashed", "pending"]
    assert list((cell("bf16") / "run" / "checkpoints").glob("step-*.pt"))


def test_a_grid_with_a_recipe_of_the_configs_own_on_two_devices():
    Path("mine.yaml").write_text(
        "base: digits\nrecipe: {name: mine, base: fp16, loss_scale: 1024}\n"
    )
    given = [*TINY, "optimizer.lr=0.1"][1:]
    options = [each for each in given if not each.startswith("batch_size")]
    arguments = ["mine.yaml", "--recipes", "mine", "--seeds", "1"]
    arguments += ["--grid", "batch_size=128,256"]
    arguments += ["--options", *options[: options.index("--device")], "optimizer.lr=0.1"]
    printed = compared(*arguments, "--devices", "cpu,cpu", "--time-limit", "10m")
    assert "mine batch_size=256 seed 0: finished" in printed
    document = json.loads(Path("runs/compare/mine/comparison.json").read_text())
    ran = [(each["recipe"], each["point"], each["summary"]["steps"]) for each in document["cells"]]
    assert [each[:2] for each in ran] == [
        ("mine", ["batch_size=128"]),
        ("mine", ["batch_size=256"]),
    ]
    assert (ran[0][2], ran[1][2]) == (10, 5)  # 1347 images in whole batches of either size
    assert document["cells"][0]["summary"]["recipe"] == "mine"
