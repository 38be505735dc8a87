"""The line on a terminal: every figure whole, and the bar in the rest."""

import io
import re

import pytest
from rich.console import Console

from halfstep.train.observers.progress_bar import ProgressLine

FIGURES = {
    "loss": 6.9077,
    "accuracy": 0.1234,
    "images_per_second": 12345.6,
    "loss_scale": 65536.0,
}
LARGE = ProgressLine(
    title="imagenet/resnet50 fp16 seed 0",
    epoch=123,
    epochs=300,
    step=512_345,
    steps=1_251_000,
    seconds_left=123 * 3600 + 59 * 60,
    memory_bytes=10_234 * 2**20,
    figures=FIGURES,
)
USUAL = ProgressLine("digits fp16 seed 0", 2, 30, 44, 660, 187.0, 64 * 2**20, FIGURES)


def drawn(line, width):
    """Return the lines that a terminal of this width shows."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    console.print(line)
    return console.file.getvalue().removesuffix("\n").split("\n")


def bar(text):
    """Return the columns of the bar, without the gaps around it."""
    return "".join(re.findall(r"  ([━ ]*)  \d+/\d+  ", text))


@pytest.mark.parametrize("width", [50, 60, 70, 80, 100, 120, 200])
@pytest.mark.parametrize("line", [LARGE, USUAL], ids=["large", "usual"])
def test_every_figure_is_whole_and_the_line_is_one(line, width):
    (text,) = drawn(line, width)
    assert len(text) <= width
    left = "123h59m" if line is LARGE else "3m07s"
    for figure in (f"{line.epoch}/{line.epochs}", f"{line.step}/{line.steps}", "6.9077", "12346"):
        assert re.search(rf"(?<!\S){re.escape(figure)}(?!\d)", text), figure
    assert left in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("line", "width", "least"),
    [(LARGE, 60, 4), (LARGE, 80, 6), (LARGE, 120, 10), (USUAL, 80, 10), (USUAL, 120, 10)],
)
def test_the_bar_takes_what_is_left(line, width, least):
    (text,) = drawn(line, width)
    assert len(bar(text)) >= least
    assert len(text) == width


def test_the_bar_is_dropped_when_nothing_is_left():
    (text,) = drawn(LARGE, 50)
    assert bar(text) == ""
    assert text == "123/300  512345/1251000  6.9077  12346/s  123h59m"


def test_a_wide_terminal_also_shows_title_accuracy_memory_and_scale():
    (text,) = drawn(LARGE, 160)
    assert text.startswith("imagenet/resnet50 fp16 seed 0  epoch 123/300  ━")
    assert text.endswith(
        "  512345/1251000  loss 6.9077  acc 12.3%  12346 img/s  10234 MiB  scale 65536  "
        "123h59m left"
    )


def test_a_run_without_figures_yet_has_its_position():
    (text,) = drawn(ProgressLine("digits fp32 seed 0", 1, 3, 0, 66), 80)
    assert text.startswith("digits fp32 seed 0  epoch 1/3   ")
    assert text.endswith("  0/66")


def test_a_loss_of_any_size_is_short():
    for loss in (float("nan"), -3.5, 9999.99994, 1e30, float("inf")):
        (text,) = drawn(
            ProgressLine("t", 300, 300, 99999, 99999, 9.0, 0, {**FIGURES, "loss": loss}), 60
        )
        assert len(text) <= 60
        assert "…" not in text
