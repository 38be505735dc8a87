"""The queue of benchmarks/gpu.py, and a dry run of each of its items on a CPU at toy size."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Import a module of the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


DRY_RUN = """
import sys
import gpu
from gpu_items import ITEMS

configs = ("pydantic", "ruamel", "ruamel.yaml")
names = [item.name for item in ITEMS if item.name not in sys.argv[2:]]
without = [item.name for item in ITEMS if item.name in names and not {*configs} & {*item.needs}]
others = [name for name in names if name not in without]
sys.modules |= dict.fromkeys(configs)  # an import of these fails
codes = [gpu.main(["--dry-run", "--out", sys.argv[1] + "/without", "--only", ",".join(without)])]
for name in configs:
    del sys.modules[name]
codes += [gpu.main(["--dry-run", "--out", sys.argv[1] + "/others", "--only", ",".join(others)])]
sys.exit(max(codes))
"""


SELDOM = (
    *("graph-large", "compiled-fp16", "compiled-o2", "compare", "trainer", "feed"),
    *("held-out-1", "held-out-2", "held-out-3"),
)
"""Long items, and those of the code of others, which `make soak` runs."""


@pytest.fixture(
    scope="module",
    params=[SELDOM, pytest.param((), marks=pytest.mark.slow)],
    ids=["usual items", "all items"],
)
def dry_run(tmp_path_factory, request):
    """Run items in one process; those that need no configs, without what configs need."""
    folder = tmp_path_factory.mktemp("dry")
    paths = os.pathsep.join([str(BENCHMARKS), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", DRY_RUN, str(folder), *request.param],
        env={**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [json.loads(file.read_text()) for file in folder.glob("*/gpu.json")]
    ended = {each["item"]: each for part in found for each in part["ended"]}
    items = {name: each for part in found for name, each in part["items"].items()}
    assert done.returncode == 0, (done.stdout, done.stderr[-2000:], ended)
    return ended, items


def test_every_item_runs_at_toy_size(dry_run, script):
    ended, items = dry_run
    names = {item.name for item in script("gpu_items").ITEMS}
    assert {*ended} == {*items}
    assert {*items} in (names, names - {*SELDOM})
    for name, document in items.items():
        assert ended[name]["state"] == "measured", ended[name]
        assert ended[name]["note"] == ""  # a variant that failed would be told here
        assert document["complete"]
        assert document["rows"]
        assert {"hash", "commit", "date", "device", "versions", "answers"} <= document.keys()
        assert {"torch", "cuda", "driver", "halfstep"} <= document["versions"].keys()
    for row in (row for document in items.values() for row in document["rows"]):
        for name in {"ms", "host_ms", "ratio"} & row.keys():
            spread = row[name]
            assert spread["low"] <= spread["median"] <= spread["high"]
            assert spread["n"] >= 1
            assert spread["mean"] > 0
        assert ("peer" in row) == ("ratio" in row)


def test_the_items_measure_what_they_promise(dry_run):
    _, items = dry_run

    def variants(name):
        return {row.get("variant") for row in items[name]["rows"]}

    recipes = ("fp32", "tf32", "bf16", "fp16")
    loops = {f"{way}, {recipe}" for way in ("PyTorch", "engine") for recipe in recipes}
    assert variants("loop") == {*loops, "engine, o2"}
    small = [row for row in items["loop"]["rows"] if row["clip"] == 1.0]
    assert all({"launches", "device_reads", "host_ms"} <= row.keys() for row in small)
    assert len(small) == 4
    captured = {f"engine, {recipe}, captured" for recipe in ("fp16", "bf16", "o2", "bf16-sr")}
    assert captured < variants("graph")
    (bits,) = [row for row in items["graph"]["rows"] if "same_bits" in row]
    assert bits["same_bits"]
    assert bits["skipped"] == 1
    if "graph-large" in items:
        assert "engine, fp16, compiled, captured" in variants("graph-large")
    ways = ("fp8", "fp8, rowwise", "fp8, emulated")
    assert {*(f"engine, {way}" for way in ways), "PyTorch, bf16"} <= variants("fp8")
    torchao = "torchao, tensorwise, compiled"
    assert {"engine, bf16, compiled", torchao} <= variants("fp8-compiled")
    (ours,) = [
        r for r in items["fp8-compiled"]["rows"] if r.get("variant") == "engine, fp8, compiled"
    ]
    assert ours["peer"] == torchao
    assert "engine, fp8, compiled" in variants("fp8-gpt")
    of_images = [
        row["of"].partition(",")[0] for row in items["fp8-images"]["rows"] if "peer" in row
    ]
    assert of_images == ["test_vit", "test_resnet"]
    *shapes, signs = items["fp8-shapes"]["rows"]
    assert all(row["gain"] > 0 for row in shapes)
    assert signs["shapes"] == len(shapes) == 2
    assert {f"engine, fp16+act{bits}" for bits in (2, 4, 8)} <= variants("activations")
    kernels = [row for row in items["packing"]["rows"] if row["variant"] != "copy"]
    assert len(kernels) == 3 * (2 * 4 + 2) + 2 <= 40, "each is compiled once"
    assert all(row["GB_per_s"]["median"] > 0 for row in kernels)
    assert {"engine, bf16-sr", "engine, bf16-kahan", "engine, bf16-true"} <= variants("rounding")
    assert {f"engine, {way}, moments in 8 bits" for way in ("bf16-sr", "split8")} <= variants(
        "rounding"
    )
    for recipe in ("bf16", "fp16", "o2") if "compiled-o2" in items else ("bf16",):
        assert f"engine, {recipe}, compiled" in variants(f"compiled-{recipe}")
    if "compare" in items:
        answers = {row["recipe"]: row["answer"] for row in items["compare"]["rows"]}
        assert answers.keys() == {"fp32", "fp32-again", "control"}
        assert answers["fp32"] == "baseline"
    for piece in range(4):
        launch, *measured = items[f"operators-{piece}"]["rows"]
        assert launch["launch_seconds"] > 0
        assert measured
        assert all(row["seconds"] > 0 and row["ops"] for row in measured)
        if f"held-out-{piece}" in items:
            assert variants(f"held-out-{piece}") == {f"PyTorch, {recipe}" for recipe in recipes}
    (tests,) = items["tests"]["rows"]
    assert tests["skipped"] > 0
    assert (tests["passed"], tests["failed"], tests["not_run"]) == (0, 0, 0)
    assert {*tests["reasons_of_skipped"].values()} == {"Skipped: needs a GPU"}


def test_other_ways_to_save_memory_are_beside_compressed_activations(dry_run):
    _, items = dry_run
    rows = {row["variant"]: row for row in items["activations"]["rows"]}
    for way in ("checkpointing", "selective checkpointing", "offload"):
        row = rows[f"engine, fp16, {way}, peak of act2"]
        assert row["blocks"] == row["of_blocks"] > 1, "on a CPU, no peak is known"
        assert not row["suffices"]


def test_shapes_were_chosen_by_the_table_of_gains(script):
    from halfstep.mechanisms.float8.gain import Gains, table

    shapes = json.loads(script("gpu_items.fp8_shapes").SHAPES.read_text())["shapes"]
    assert len({tuple(shape) for *shape, _ in shapes}) == 100
    predicted = Gains("h200", {**table()["gpus"]["h200"], "measured": []})
    gains = [gain for *_, gain in shapes]
    assert gains == [round(predicted.gain(*shape).value, 3) for *shape, _ in shapes]
    assert sum(gain > 1.05 for gain in gains) == sum(gain < 0.95 for gain in gains) == 50


def test_pieces_of_operators_become_the_file_of_a_gpu(dry_run, script, tmp_path):
    _, items = dry_run
    module = script("operator_file")
    found = module.joined([items[f"operators-{piece}"] for piece in range(4)], "h200")
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(found))
    measured = script("halfstep.advise.predict.measured").read(path, own=False)
    assert measured.gpu.key == "h200"
    assert len(measured.calls) >= len(found["rows"]) >= 8
    other = items["operators-0"] | {"device": "another"}
    with pytest.raises(SystemExit, match="the items differ in device"):
        module.joined([other, items["operators-1"]], "h200")


def test_held_out_models_have_no_part_in_the_list_of_operators(script):
    held_out = {name for name, *_ in script("gpu_items.models").HELD_OUT}
    assert len(held_out) == 12
    listed = script("operator_list").IMAGES
    assert len({*listed}) == 40
    assert not held_out & {*listed}


def test_tests_that_need_a_gpu_say_so_in_the_words_that_the_item_looks_for(script):
    reason = script("gpu_items.gpu_tests").REASON
    mark = re.compile(r"skipif\(\s*not torch\.cuda\.is_available\(\),\s*reason=\"(.*?)\"")
    reasons = [
        found
        for file in (ROOT / "tests").rglob("test_*.py")
        for found in mark.findall(file.read_text())
    ]
    assert len(reasons) > 10
    assert {*reasons} == {reason}


QUICK = """
def rows(at, *arguments):
    yield {"figure": 1, "arguments": arguments}
"""
CRASHES = """
import os, signal
def rows(at):
    yield {"figure": 1}
    os.kill(os.getpid(), signal.SIGKILL)
"""
RAISES = """
def rows(at):
    yield {"refused": "no such kernel"}
    raise RuntimeError("it broke")
"""
HANGS = """
import time
def rows(at):
    time.sleep(1000)
"""
PARTS = """
def rows(at):
    yield {"figure": 1}
    yield {"refused": "no such kernel"}
"""
INTERRUPTS = """
import os, signal, time
from pathlib import Path
def rows(at, folder):
    yield {"figure": 1}
    Path(folder, "process").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(1000)
"""


@pytest.fixture
def made(tmp_path, script):
    """Return what makes an item of the code of its script."""

    def make(name, code, seconds=60, **of):
        file = tmp_path / f"{name}.py"
        file.write_text(code)
        return script("gpu_items").Item(name, f"What is {name}?", str(file), seconds, **of)

    return make


@pytest.fixture
def queue(tmp_path, script):
    """Return what runs items, and returns how they ended, by name."""

    def run(*items, **of):
        ran = script("gpu_items.queue").Queue(items, tmp_path / "results", device="cpu", **of)
        ran.run()
        return {each.item: each for each in ran.ended}, ran.table()

    return run


def result(folder, name):
    return json.loads((folder / "results" / f"{name}.json").read_text())


def test_an_item_that_fails_loses_only_itself(made, queue, tmp_path):
    out = tmp_path / "out"
    items = (
        made("crashes", CRASHES),
        made("raises", RAISES),
        made("hangs", HANGS, seconds=2),
        made("parts", PARTS),
        made("quick", QUICK, arguments=("o2",)),
    )
    ended, table = queue(*items, out=out)
    states = {name: each.state for name, each in ended.items()}
    assert states == {
        **dict.fromkeys(("crashes", "raises", "hangs"), "failed"),
        **dict.fromkeys(("parts", "quick"), "measured"),
    }
    assert ended["crashes"].note.startswith("exit code -9: ")
    assert ended["raises"].note == "exit code 1: RuntimeError: it broke"
    assert ended["hangs"].note == "longer than 2 s"
    assert ended["parts"].note == "1 of 2 rows refused: no such kernel"
    assert "Traceback" in ended["raises"].output
    assert [line.split()[0] for line in table.splitlines()] == ["item", *ended]
    quick = result(tmp_path, "quick")
    assert quick["rows"] == [{"figure": 1, "arguments": ["o2"]}]
    assert quick["answers"] == "What is quick?"
    # What an item had before it crashed is kept, but it is no result that lets the item be skipped.
    assert result(tmp_path, "crashes")["rows"] == [{"figure": 1}]
    assert not result(tmp_path, "crashes")["complete"]
    assert not (tmp_path / "results" / "raises.json").exists()  # no figures
    written = json.loads((out / "gpu.json").read_text())
    assert written["items"].keys() == {"crashes", "parts", "quick"}
    assert [each["state"] for each in written["ended"]] == list(states.values())
    assert [file.name for file in out.iterdir()] == ["gpu.json"]


def test_an_unchanged_item_is_skipped(made, queue, tmp_path, script, monkeypatch):
    document = script("gpu_items.document")
    monkeypatch.setattr(document, "SOURCE", tmp_path / "halfstep")
    (tmp_path / "halfstep").mkdir()
    module = tmp_path / "halfstep" / "module.py"

    def states(item, code, **of):
        document._source.cache_clear()
        module.write_text(code)
        return queue(item, alone=False, **of)[0][item.name].state

    item = made("quick", QUICK)
    assert states(item, "a = 1") == "measured"
    assert states(item, "a = 1") == "skipped, unchanged"
    assert states(item, "a = 1", force=True) == "measured"
    assert states(item, "a = 2") == "measured"
    assert states(item, "a = 2") == "skipped, unchanged"
    (tmp_path / "halfstep" / "__pycache__").mkdir()
    (tmp_path / "halfstep" / "__pycache__" / "module.pyc").write_text("")
    assert states(item, "a = 2") == "skipped, unchanged"
    assert states(made("quick", QUICK + "\n"), "a = 2") == "measured"
    (tmp_path / "halfstep" / "added.py").write_text("")
    assert states(item, "a = 2") == "measured"
    module.rename(tmp_path / "halfstep" / "other.py")
    module.write_text("")
    assert states(item, "") == "measured"
    also = made("quick", QUICK, also=(str(tmp_path / "halfstep" / "added.py"),))
    assert states(also, "") == "measured"
    document._source.cache_clear()


def test_a_part_does_not_replace_a_whole(made, queue, tmp_path):
    queue(made("item", QUICK), alone=False)
    whole = result(tmp_path, "item")
    ended, _ = queue(made("item", CRASHES.replace("os.kill", "raise OSError #")), alone=False)
    assert ended["item"].state == "failed"
    assert result(tmp_path, "item") == whole


def test_an_item_that_does_not_fit_or_lacks_a_package_is_not_begun(made, queue):
    ended, table = queue(
        made("long", QUICK, seconds=90),
        made("lacks", QUICK, needs=("json", "no_such_package", "no_such.part")),
        made("short", QUICK, seconds=30),
        alone=False, seconds=60,
    )  # fmt: skip
    assert ended["long"].state == ended["lacks"].state == "not begun"
    assert re.fullmatch(r"it may take 90 s, and \d\d s were left", ended["long"].note)
    assert ended["lacks"].note == "it needs no_such_package and no_such.part, not installed here"
    assert ended["short"].state == "measured"
    assert "no_such_package" in table


CTRL_C = """
import json, sys
from pathlib import Path
import gpu
from gpu_items import Item
gpu.ITEMS = tuple(Item(**each) for each in json.loads(sys.argv[2]))
gpu.RESULTS = Path(sys.argv[1]) / "results"
gpu.has_gpu = lambda: True
sys.exit(gpu.main(["--device", "cpu", "--toy", "--out", sys.argv[1]]))
"""


def test_ctrl_c_ends_the_item_and_prints_the_table(made, tmp_path):
    quick, second = made("quick", QUICK), made("second", QUICK)
    interrupts = made("interrupts", INTERRUPTS, arguments=(str(tmp_path),))
    items = json.dumps([vars(each) for each in (quick, interrupts, second)])
    paths = os.pathsep.join([str(BENCHMARKS), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, str(tmp_path), items],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()[-3:]]
    states = dict(rows)
    assert states["quick"].startswith("measured")
    assert re.match(r"failed +[\d.]+  interrupted", states["interrupts"])
    assert states["second"].startswith("not begun")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["items"].keys() == {"quick", "interrupts"}


def test_results_of_another_machine_are_kept(made, queue, tmp_path, script, monkeypatch):
    gpu, document = script("gpu"), script("gpu_items.document")
    item = made("quick", QUICK)
    with monkeypatch.context() as there:
        there.setattr(document, "commit", lambda: None)  # no git
        queue(item, alone=False, out=tmp_path / "out")
    assert result(tmp_path, "quick")["commit"] is None
    monkeypatch.setattr(gpu, "ITEMS", (item,))
    monkeypatch.setattr(gpu, "commit", lambda: "12345678")
    at_home = tmp_path / "home" / "results"
    assert gpu.keep_all(tmp_path / "out" / "gpu.json", at_home) == "quick: kept"
    assert result(tmp_path / "home", "quick")["commit"] == "12345678"
    assert script("gpu_items.queue").is_fresh(item, at_home)
    Path(item.script).write_text(QUICK + "\n")
    said = gpu.keep_all(tmp_path / "out" / "gpu.json", at_home)
    assert said == "quick: kept; it was measured with other files than those here"
    assert result(tmp_path / "home", "quick")["commit"] is None


def test_a_tree_that_is_not_installed_has_metadata(tmp_path, script, monkeypatch):
    queue = script("gpu_items.queue")
    monkeypatch.setenv("PYTHONPATH", f"src{os.pathsep}packages")
    here = queue.environment(tmp_path)["PYTHONPATH"].split(os.pathsep)
    assert here[-1] == str(Path("packages").absolute())

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(queue.metadata, "version", missing)
    folder = queue.environment(tmp_path)["PYTHONPATH"].split(os.pathsep)[-1]
    (found,) = metadata.distributions(path=[folder])
    assert (found.name, found.version) == (
        "halfstep",
        importlib.import_module("halfstep").__version__,
    )


class Gpu:
    """Stands for the parts of `torch.cuda` that are measured with; its clock is set by steps."""

    def __init__(self, monkeypatch) -> None:
        self.milliseconds, self.allocated, self.peak = 0.0, 0, 0
        self.waits, self.refuses = 0, False
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = gpu.milliseconds

            def elapsed_time(self, end):
                return end.at - self.at

        def synchronize():
            self.waits += 1

        def reset():
            self.peak = self.allocated

        def mode(name):
            self.refuses = name == "error"

        functions = {
            "Event": Event,
            "synchronize": synchronize,
            "memory_allocated": lambda: self.allocated,
            "max_memory_allocated": lambda: self.peak,
            "reset_peak_memory_stats": reset,
            "set_sync_debug_mode": mode,
        }
        for name, function in functions.items():
            monkeypatch.setattr(f"torch.cuda.{name}", function)

    def step(self, milliseconds, megabytes, log):
        """Return a step of some milliseconds that needs some MiB while it runs."""

        def step():
            log.append(milliseconds)
            self.milliseconds += milliseconds
            self.peak = max(self.peak, self.allocated + megabytes * 2**20)

        return step


def test_variants_take_turns_in_an_order_that_is_reversed(script, monkeypatch):
    turns = script("gpu_items.turns")
    monkeypatch.setattr(turns, "WARM_SECONDS", 0.0)
    gpu, log = Gpu(monkeypatch), []

    def variant(name, milliseconds, megabytes, peer=""):
        def start(opened):
            gpu.allocated += 2**20  # of the model
            return gpu.step(milliseconds, megabytes, log)

        return turns.Variant(name, start, peer)

    def fails(opened):
        raise ValueError("no such recipe")

    at = script("gpu_items").At("cuda", toy=False, deadline=float("inf"))
    rows = turns.alternate(
        [
            variant("theirs", 100.0, 3),
            variant("ours", 250.0, 5, "theirs"),
            turns.Variant("none", fails, "theirs"),
        ],
        at,
    )
    theirs, ours, none = rows
    assert theirs["ms"] == {"mean": 100, "median": 100, "low": 100, "high": 100, "n": turns.ROUNDS}
    assert (theirs["steps_a_turn"], ours["steps_a_turn"]) == (2, 1)
    assert (theirs["peak_MiB"], ours["peak_MiB"]) == (4, 6)
    assert ours["ratio"]["median"] == 2.5
    assert ours["peer"] == "theirs"
    assert none == {"variant": "none", "refused": "ValueError: no such recipe"}
    assert turns.ROUNDS >= 10
    # A step before each turn is not timed, and is on an idle device.
    first, second = [100.0] * 3, [250.0] * 2
    assert log[-10:] == [*first, *second, *second, *first]
    assert gpu.waits > len(log) / 2


def test_figures_are_mean_median_and_quartiles(script):
    spread = script("gpu_items.turns").spread
    assert spread([4.0, 1.0, 2.0, 3.0, 10.0]) == {
        "mean": 4.0, "median": 3.0, "low": 2.0, "high": 4.0, "n": 5,
    }  # fmt: skip
    assert spread([7.0]) == {"mean": 7.0, "median": 7.0, "low": 7.0, "high": 7.0, "n": 1}


def test_no_variant_starts_when_the_time_is_over(script, monkeypatch):
    turns = script("gpu_items.turns")
    Gpu(monkeypatch)
    at = script("gpu_items").At("cuda", toy=False, deadline=0.0)
    (row,) = turns.alternate([turns.Variant("late", lambda _: pytest.fail)], at)
    assert row == {"variant": "late", "refused": "no time was left for it"}


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_others_treat_as_few_blocks_as_have_the_peak_of_compressed_activations(script, monkeypatch):
    """Blocks of 10 MiB each, which are not kept if they are treated; the other layers are 25."""
    item = script("gpu_items.activations")
    gpu, log = Gpu(monkeypatch), []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)

    def by_engine(task, recipe, opened):
        model, _ = task.make()
        treated = [block.forward.func.__self__ for stage in model.stages for block in stage]

        def step():
            whole = sum(each.count <= index for index, each in enumerate(treated))
            gpu.step(1.0, 25 + 10 * whole, log)()

        return step

    class Block:
        def forward(self, values):
            return values

    class Model:
        def __init__(self):
            self.stages = [[Block(), Block()] for _ in range(4)]
            self.layer1, self.layer2, self.layer3, self.layer4 = self.stages

    monkeypatch.setattr(item, "by_engine", by_engine)
    task = script("gpu_items.steps").Task("it", lambda: (Model(), None), lambda _: None)
    at = script("gpu_items").At("cuda", toy=False, deadline=float("inf"))
    limits = {"act8": 66 * 2**20, "act4": 35 * 2**20, "act2": 24 * 2**20}
    found = item._blocks_for(task, "offload", limits, at)
    assert [each["blocks"] for each in found.values()] == [4, 7, 8]
    assert [each["suffices"] for each in found.values()] == [True, True, False]
    assert {each["of_blocks"] for each in found.values()} == {8}
    assert len(log) < 2 * 9, "each number of blocks is measured once, and not all are"


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_step_that_reads_the_device_is_told(script, monkeypatch):
    steps = script("gpu_items.steps")
    gpu = Gpu(monkeypatch)
    at = script("gpu_items").At("cuda", toy=False, deadline=float("inf"))

    def reads():
        if gpu.refuses:
            raise RuntimeError("called a synchronizing CUDA operation\nand more")

    assert steps.inspection(at)(reads)["device_reads"] == "called a synchronizing CUDA operation"
    assert not gpu.refuses
    assert steps.inspection(at)(lambda: None) == {"launches": 0, "device_reads": "none"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "loop,lop"], "--only names lop; allowed: tests, loop, "),
        (["--device", "cpu"], "--device cpu measures nothing of worth; write --dry-run"),
        ([], "CUDA finds no GPU here; write --dry-run to try the items on a CPU"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, said, script, monkeypatch, capsys):
    gpu = script("gpu")
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_list_says_what_is_due(script, capsys):
    gpu = script("gpu")
    assert gpu.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(gpu.ITEMS)
    for line, item in zip(lines, gpu.ITEMS, strict=True):
        assert re.match(rf"{item.name} +{item.seconds} s  (due|unchanged) ", line)
        assert line.endswith(item.answers)
        assert item.seconds <= 90
