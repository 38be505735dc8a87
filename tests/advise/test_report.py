"""What advice leaves in a directory trains, names its sources, and is the same every time."""

from __future__ import annotations

import html
import html.parser
import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from rich.console import Console

from advise.choose.test_exceptions import Square, subject
from halfstep.advise.answer import Answer, answer
from halfstep.advise.choose import show
from halfstep.advise.choose.advice import NOT_EXAMINED, Advice
from halfstep.advise.choose.exponents import Exponents
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.report import files
from halfstep.advise.report.page import page
from halfstep.advise.report.strips import HEIGHT, Axis
from halfstep.cli import advise as commands
from halfstep.cli import main
from halfstep.errors import UserError
from halfstep.recipe import recipe
from halfstep.train.config.files import load

if TYPE_CHECKING:
    from pathlib import Path

GPUS = (gpu("t4"), gpu("h100"))


@pytest.fixture(scope="module")
def found() -> Answer:
    about = replace(subject(Square), config=("digits", ("epochs=2", "recipe=bf16")))
    return answer(about, ["fp16", "half-bn32"], GPUS, batch=1 << 20)


def test_the_config_trains_what_was_chosen(found: Answer, tmp_path: Path) -> None:
    written = files.write(tmp_path / "new", found)
    best = found.choices[0].best
    assert best is not None
    assert written[:3] == ["advice.json", "report.html", "t4.yaml"]
    config = load(str(tmp_path / "new" / "t4.yaml"))
    assert config.epochs == 2
    assert config.build_recipe().settings() == best.trial.recipe.settings()
    comments = (tmp_path / "new" / "t4.yaml").read_text()
    assert "# gate.mul (test_exceptions.py:" in comments
    assert "of its results are inf or NaN" in comments


def test_a_function_gets_the_recipe_that_an_engine_takes(found: Answer, tmp_path: Path) -> None:
    alone = replace(found, subject=subject(Square), choices=())
    assert files.write(tmp_path, alone)[2:] == ["recipe.yaml"]
    file = tmp_path / "recipe.yaml"
    assert recipe(file) == recipe(str(file)) == alone.recommended[0].recipe
    assert f'Engine(model, optimizer, recipe="{file.as_posix()}")' in file.read_text()


def test_a_directory_that_cannot_be_had_is_one_line(found: Answer, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match="name another directory with --out"):
        files.write(tmp_path / "taken" / "below", found)


class Cells(html.parser.HTMLParser):
    """Collects cells of tables with their labels, and what names sources."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[str] = []
        self.sources: list[str] = []
        self.predicted = 0
        self.outside: list[str] = []
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self._depth = int(given.get("class") == "predicted")
            self.predicted += self._depth
        if tag == "td":
            (self.labels if self._depth else self.outside).append(given["data-label"] or "")
        if "data-source" in given:
            self.sources.append(given["data-source"] or "")


def test_the_page_keeps_predicted_figures_apart_and_names_their_source(found: Answer) -> None:
    cells = Cells()
    cells.feed(page(found))
    assert cells.predicted == len(GPUS)
    assert gpu("t4").caution in html.unescape(page(found))
    assert found.as_json()["predicted"]["cautions"] == {"t4": gpu("t4").caution}
    assert all(label.startswith(("≈", "predicted")) for label in cells.labels)
    assert not [label for label in cells.outside if "≈" in label]
    data = json.loads(json.dumps(found.as_json()))
    assert len(cells.sources) > 20
    for source in cells.sources:
        at = data
        for part in source.removeprefix("advice.json#").split("."):
            at = at[int(part)] if isinstance(at, list) else at[part]


def test_the_page_names_the_module_of_the_headroom(found: Answer) -> None:
    assert found.advice is not None
    for trial in found.advice.safe:
        assert f"in {show.module_text(trial.headroom[1])}<" in page(found)


def test_each_config_of_the_page_names_its_gpus(found: Answer) -> None:
    titles = re.findall(r'<pre class="config"[^>]*># (.*)\n', html.unescape(page(found)))
    on = ", ".join(title.partition(" on ")[2] for title in titles)
    assert sorted(on.split(", ")) == sorted(each.gpu.name for each in found.choices)


def test_the_page_has_a_strip_for_what_every_site_returns(found: Answer) -> None:
    assert found.advice is not None
    text = page(found)
    for site in found.advice.recorded.forward:
        assert f"<code>{site.pattern}</code>" in text
    assert text.count("<path d=") >= 2 * len(found.advice.recorded.backward)
    assert "fp32 under fp16" in text
    assert not re.findall(r"(?:src|href)=.(?!data:)", text)


def test_the_page_shows_the_first_operators_and_gpus_and_the_rest_on_demand(
    found: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "<details" not in page(found)
    monkeypatch.setattr("halfstep.advise.report.page.FIRST_SITES", 1)
    monkeypatch.setattr("halfstep.advise.report.page.FIRST_GPUS", 1)
    assert found.advice is not None
    first, *others = found.advice.recorded.forward
    excepted = {name for trial in found.advice.safe for name in trial.exceptions}
    gpu, sites = re.findall(r"<details.*?</details>", page(found), re.DOTALL)
    assert "≈ ms/step" in gpu
    assert f"<code>{first.pattern}</code>" not in sites
    for each in others:
        assert (f"<code>{each.pattern}</code>" in sites) is (each.pattern not in excepted)
    assert excepted


def test_a_strip_has_its_bins_where_the_axis_has_them() -> None:
    values = Exponents.of(torch.tensor([1.0, 1.5, 2.0**10, 2.0**-100]))
    axis = Axis.of([values])
    assert (axis.low, axis.high) == (-64, 20)
    heights = re.findall(r"V(\d+)h1", axis.strip(values))
    drawn = {at + axis.low: HEIGHT - int(each) for at, each in enumerate(heights) if each != "24"}
    # What is smaller than the axis reaches is at its end.
    assert drawn == {-64: HEIGHT // 2, 0: HEIGHT, 10: HEIGHT // 2}
    fp16 = axis.ranges()[0]
    assert fp16["subnormal"]["x"] + axis.low == -24
    assert fp16["normal"]["x"] + axis.low == -14
    assert fp16["normal"]["x"] + fp16["normal"]["width"] + axis.low == 16
    assert not axis.strip(Exponents.none())


def test_a_recipe_with_a_warning_is_not_simply_safe(found: Answer) -> None:
    assert found.advice is not None
    calm = replace(found.advice, later={})
    assert all(not calm.warnings(trial) for trial in calm.trials)
    tight = replace(calm.trials[0], headroom=(1.0, "gate"))
    warned = replace(calm, trials=(tight, calm.trials[1]))

    def printed(advice: Advice) -> str:
        console = Console(file=io.StringIO(), width=200)
        show.show(console, replace(found, advice=advice))
        show.conclude(console, replace(found, advice=advice))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "safe: fp16, half-bn32\n" in printed(calm)
    assert "warning" not in printed(calm)
    assert re.search(r"^ fp16 +yes, warning ", printed(warned), re.MULTILINE)
    assert "fp16: warning: gate is 1 bit from overflow; run" in printed(warned)
    assert "safe: half-bn32; safe, with a warning: fp16\n" in printed(warned)
    text = page(replace(found, advice=warned))
    assert text.count("yes, warning") == 2 * text.count(">yes, warning<") == 2
    assert "warning: gate is 1 bit from overflow" in text


PROGRAM = """
import torch
from torch import nn

def build(): return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
def batches(): return [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(8)]
"""


SQUARING = """
import torch
from torch import nn

class Squaring(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 32), nn.Linear(32, 3)

    def forward(self, x):
        wide = self.inner(x) * 1000
        return self.head(wide * wide / 1e6)

def build(): return Squaring()
def batches(): return [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(8)]
"""


class Program:
    """`halfstep advise` on a file in the working directory.

    Args:
        directory: Where the file is written.
        name: Of its module.
        text: Has the functions `build` and `batches`.
    """

    def __init__(self, directory: Path, name: str, text: str) -> None:
        (directory / f"{name}.py").write_text(text)
        self.given = ["advise", f"{name}.py:build", "--batches", f"{name}.py:batches"]

    def advise(self, *more: str) -> int:
        return main([*self.given, *more])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_same_seed_gives_the_same_bytes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = Program(here, "seeded_program", PROGRAM)
    given = ["--recipes", "bf16,bf16-sr", "--gpu", "t4,h100", "--batch-size", "4096", "--verify"]

    def left(out: str, *more: str) -> dict[str, bytes]:
        torch.rand(3)  # random numbers outside do not count
        assert program.advise(*given, "--out", out, *more) == 0
        return {
            path.name: path.read_bytes().replace(f'"{out}/'.encode(), b'"')  # in a comment
            for path in (here / out).iterdir()
        }

    first = left("one")
    # Layers of a Sequential are called by no line of the user's.
    assert b".py:" not in first["report.html"].replace(b"seeded_program.py:build", b"")
    assert first == left("two")
    said = capsys.readouterr().out
    assert "no units for bf16" in said
    assert "advice.json, report.html, t4.yaml and h100_sxm.yaml are in one" in said
    lines = said[: said.index(" are in one")].splitlines()
    assumed = lines.index(
        "no --optimizer and no --lr given: assuming sgd (momentum 0.9) with a learning rate of "
        "0.01; the safe recipes depend on both"
    )
    assert lines[assumed + 1].startswith("safe: bf16")
    # No exception changed a cost, and so each row is there once.
    assert sum(line.startswith("bf16-sr  ") for line in lines) == len(GPUS)
    assert left("three", "--seed", "1")["advice.json"] != first["advice.json"]


def test_the_recommendation_comes_before_its_verification_and_the_lines_name_their_gpu(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(here, "verified_program", PROGRAM)
    given = ["--recipes", "bf16", "--gpu", "h100", "--batch-size", "4194304", "--budget", "20s"]
    assert program.advise(*given) == 0
    said = capsys.readouterr().out
    order = [
        "on H100 SXM5 80GB: use bf16, predicted",
        "advise now verifies bf16 in short training runs, in at most 7 s; Ctrl-C ends this",
        "bf16 in short training runs",
        "# bf16 on H100 SXM5 80GB, in Python:\nEngine(model, optimizer, recipe='bf16')\n",
        '# or without halfstep: with torch.autocast("cuda", dtype=torch.bfloat16)',
    ]
    places = [said.index(each) for each in order]
    assert places == sorted(places)
    assert said.count(order[0]) == 1


def test_what_a_plain_loop_does_is_printed_only_for_recipes_that_it_can_do() -> None:
    scaled = show._without_engine({"base": "fp16", "loss_scale": {"init": 4096.0}})
    assert scaled.endswith('torch.amp.GradScaler("cuda", init_scale=4096)')
    assert "matmul" in show._without_engine({"base": "tf32"})
    assert not show._without_engine({"base": "bf16", "exceptions": {"head": "fp32"}})
    assert not show._without_engine({"base": "o2"})


def test_only_costs_that_exceptions_changed_are_printed_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(here, "squaring_program", SQUARING)
    assert program.advise("--recipes", "bf16,fp16", "--gpu", "h100") == 0
    first, again = capsys.readouterr().out.split("advise now examines")
    assert [
        len(re.findall(rf"^{each} .*\[", first, re.MULTILINE)) for each in ("tf32", "bf16")
    ] == [1, 1]
    again = again[again.index("predicted") :]
    assert re.findall(r"^(\w+\*?) .*\[", again, re.MULTILINE) == ["fp16*"]
    assert "For the cost of the other recipes, see the first table." in again
    assert "datasheet" not in again


def test_a_batch_that_the_model_cannot_take_is_said_without_fake_tensors(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PROGRAM.replace("randn(16, 6)", "randn(16, 7)")
    assert text != PROGRAM
    program = Program(here, "wrong_batches", text)
    assert program.advise("--gpu", "t4", "--cost-only") == 2
    said = capsys.readouterr().err
    assert "wrong_batches.py:build fails on a batch even in fp32: " in said
    assert "fake" not in said
    assert program.advise("--optimizer", "sdg", "--gpu", "t4") == 2
    assert capsys.readouterr().err.startswith("error: optimizer.name is 'sdg'")


def test_an_answer_that_time_cut_says_so_and_how_to_get_the_rest(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(here, "hurried_program", PROGRAM)
    monkeypatch.setattr(commands, "BUDGET", 0.0)
    assert program.advise("--recipes", "bf16,fp16") == 0
    said = capsys.readouterr().out
    why = "because the budget is too short for the recorded steps in fp32"
    assert f"{NOT_EXAMINED}, {why}: bf16" in said
    assert "; to examine all: --budget 1m --no-verify; to verify as well, a longer budget" in said
    assert "safe:" not in said
    assert program.advise("--recipes", "bf16,fp16", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["not_examined"] == dict.fromkeys(["bf16", "fp16"], NOT_EXAMINED)
    assert all(line.startswith("advise: ") for line in err.splitlines())


@pytest.mark.parametrize("limit", ["1.01", "16"])
def test_each_gpu_has_a_recipe_file_unless_nothing_fits_into_its_memory(
    here: Path, capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    program = Program(here, "bare_program", PROGRAM)
    batch = "4194304" if limit == "1.01" else "16"
    given = ["--recipes", "fp16", "--gpu", "t4", "--batch-size", batch, "--max-memory", limit]
    assert program.advise(*given, "--no-verify", "--out", "left") == 0
    said = capsys.readouterr().out
    why = "no recipe file for T4: no recipe fits into memory there\n"
    assert (why in said) == (limit == "1.01")
    assert ("Engine(model, optimizer, recipe='fp32')" in said) == (limit == "16")
    written = [file.name for file in (here / "left").glob("*.yaml")]
    assert written == (["t4.yaml"] if limit == "16" else [])
    if written:
        assert recipe(here / "left" / "t4.yaml") == recipe("fp32")


def test_the_optimizer_of_a_model_from_a_function_is_stated_everywhere(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(here, "optimized_program", PROGRAM)
    given = ["--optimizer", "adamw", "--lr", "0.002", "--recipes", "fp32"]
    assert program.advise(*given, "--json", "--out", "left") == 0
    expected = {"name": "adamw", "lr": 0.002}
    data = json.loads(capsys.readouterr().out)
    assert (data["optimizer"], data["assumed"]) == (expected, [])
    report = (here / "left" / "report.html").read_text()
    assert "8 steps in fp32 with adamw, learning rate 0.002;" in report
    assert "assuming" not in report


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "assuming sgd (momentum 0.9); the predicted time and memory depend on it\n"),
        (["--optimizer", "sgd"], None),
    ],
)
def test_only_what_was_not_given_is_assumed(
    given: list[str], said: str | None, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(here, f"unstated_{len(given)}", PROGRAM)
    assert program.advise(*given, "--recipes", "fp32", "--gpu", "t4", "--cost-only") == 0
    printed = capsys.readouterr().out
    assert printed.endswith(said) if said else "assuming" not in printed


def test_costs_alone_name_the_fastest_recipe_and_the_command_that_examines_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(here, "costed_program", PROGRAM)
    given = ["--recipes", "fp16,half", "--batch-size", "4194304", "--optimizer", "sgd"]
    assert program.advise(*given, "--gpu", "t4,h100", "--cost-only") == 0
    printed = capsys.readouterr().out
    assert f"T4: {gpu('t4').caution}" in printed
    assert not gpu("h100").caution
    assert printed.count("measured only") == 1
    assert "should contain the true value, but fewer may on T4 (see below)" in printed
    assert "bandwidth: most of the step is spent on reading and writing" in printed
    assert "\nno gain: " not in printed
    *said, caution, unknown, last = printed.splitlines()[-5:]
    for line, name in zip(said, ("T4", "H100 SXM5 80GB"), strict=True):
        assert re.fullmatch(
            rf"on {name}: half is predicted to be the fastest recipe that fits, [\d.]+ \[.*\] "
            "times as fast as .*",
            line,
        )
    command = " ".join(["halfstep", *program.given, "--optimizer sgd", *given[:4]])
    assert caution == (
        "half does not scale the loss: gradients below 3e-08 become 0 (they underflow), and "
        "gradients shrink during training; fp16 and o2 scale it"
    )
    assert unknown == "which recipes are safe for the model was not examined; to examine it:"
    assert last == f"  {command} --gpu t4,h100_sxm"
    assert program.advise(*given, "--gpu", "t4", "--cost-only", "--max-memory", "1.1") == 0
    assert "on T4: no recipe fits into memory; use a smaller batch" in capsys.readouterr().out
    assert program.advise("--recipes", "fp16", "--gpu", "t4", "--cost-only") == 0
    printed = capsys.readouterr().out
    assert "no recipe that fits is predicted to be at least 1.05 times as fast as fp32" in printed
    assert (
        "80 % of the intervals [low, high] should contain the true value, but fewer may on T4"
        in printed
    )
    assert "\nno gain: less than 1.05 times as fast as fp32.\n" in printed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--max-memory", "4"], "--max-memory need --gpu; write, for example, --gpu h100"),
        (["--gpu", "t4", "--cost-only", "--verify"], "--cost-only trains nothing; leave out"),
        (["--shape", "3x8x8"], "--shape and --classes need --cost-only: without data, nothing"),
        (
            ["--gpu", "t4", "--cost-only", "--shape", "3x8x8"],
            "--shape and --classes replace a data set together; add --classes 1000",
        ),
        (
            ["--gpu", "t4", "--cost-only", "--shape", "8x8", "--classes", "2"],
            "--shape is '8x8'; allowed: channels, height and width, such as 3x224x224",
        ),
        (["--budget", "soon"], "--budget is 'soon'; allowed: hours, minutes and seconds"),
        (["--gpu", "t4,t4"], "name each GPU once"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", "digits", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
