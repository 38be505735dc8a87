"""The table of GPUs: a GPU is one row, and its rates are found under the names of the formats."""

from __future__ import annotations

import json

import pytest

from halfstep.advise.predict import gpus
from halfstep.cli import main
from halfstep.errors import UserError
from halfstep.formats import FORMATS

ROW = """
[made_up]
name = "Made-up GPU 96GB"
aliases = ["madeup"]
architecture = "blackwell"
process = 4
fp16 = 1000
tf32 = 500
fp32 = 80
fp8 = 2000
bandwidth = 4000
memory = 96
cache = 64
sms = 150
clock = 2000
power = 600
source = "a test"
"""


@pytest.fixture
def _made_up(monkeypatch, tmp_path):
    table = tmp_path / "gpus.toml"
    table.write_text(gpus.TABLE.read_text() + ROW)
    monkeypatch.setattr(gpus, "TABLE", table)
    gpus.gpus.cache_clear()
    yield
    gpus.gpus.cache_clear()


@pytest.mark.usefixtures("_made_up")
def test_a_gpu_is_one_row(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "def build(): return torch.nn.Linear(4096, 4096)\n"
        "def batches(): return [(torch.ones(8192, 4096), torch.zeros(8192, dtype=torch.long))]\n"
    )
    options = ["--batches", "model.py:batches", "--gpu", "madeup", "--recipes", "fp16"]
    options += ["--cost-only", "--json"]
    monkeypatch.setattr("sys.argv", ["halfstep", "advise", "model.py:build", *options])
    main()
    text = capsys.readouterr().out
    assert json.loads(text)
    assert "made_up" in text


def test_every_format_has_the_rate_of_its_column() -> None:
    t4, h100 = gpus.gpu("t4"), gpus.gpu("h100")
    assert {name for name in FORMATS if t4.has(name)} == {"fp32", "fp16"}
    assert {name for name in FORMATS if h100.has(name)} == set(FORMATS) - {"fp4-e2m1"}
    assert h100.peak("fp8-e4m3") == h100.peak("fp8-e5m2") == 1978.9e12
    assert t4.peak("fp8-e4m3") == t4.peak("bf16") == t4.peak("fp32") == 8.1e12
    assert h100.peak("bf16") == h100.peak("fp16") == 989.4e12
    assert h100.peak("tf32") == 494.7e12


def test_a_file_of_ones_own_describes_any_gpu(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = [
        line for line in ROW.splitlines() if not line.startswith(("name", "aliases", "source"))
    ]
    (tmp_path / "mine.toml").write_text(
        "\n".join([*plain, *ROW.replace("made_up", "b").splitlines()])
    )
    first, second, third = gpus.parse_gpus("mine.toml,t4")
    assert (first.key, first.name, first.sms) == ("made_up", "made_up", 150)
    assert (second.name, third.key) == ("Made-up GPU 96GB", "t4")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "sms = 150",
            "",
            r"mine.toml, \[made_up\] lacks sms; copy a row of .*gpus.toml as a pattern",
        ),
        ("sms = 150", "sms = 1.5", r"\[made_up\], sms is 1.5; allowed: a positive whole number"),
        ("fp32 = 80", "fp32 = '80'", r"\[made_up\], fp32 is '80'; allowed: a positive number"),
        ("fp32 = 80", "fp32 = -1", r"\[made_up\], fp32 is -1; allowed: a positive number"),
        ("fp32 = 80", "fp32 = inf", r"\[made_up\], fp32 is inf; allowed: a positive number"),
        ("clock", "clocks", r"unknown field 'clocks'.*clock"),
        ("process = 4", "process 4", r"mine.toml is no table of GPUs: .*line 6"),
        (ROW, "", r"mine.toml has no GPU; begin one with a line such as \[mine\]"),
        ("[made_up]", "", r"mine.toml: name stands outside a table"),
    ],
)
def test_a_wrong_file_is_an_error_of_one_line(old, new, said, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in ROW
    (tmp_path / "mine.toml").write_text(ROW.replace(old, new, 1))
    with pytest.raises(UserError, match=said) as refused:
        gpus.parse_gpus("mine.toml")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml is no table of GPUs: .*No such file"):
        gpus.parse_gpus("nowhere.toml")


@pytest.mark.parametrize(
    "name",
    [
        "rtx pro 6000 blackwell", "5080", "5070 ti", "4080", "b300", "gb200", "gb300", "h100 nvl",
        "h200 nvl", "h20", "gb10", "a30", "mi325x", "mi355x", "7900 xtx",
    ],
)  # fmt: skip
def test_gpus_of_today_are_there_with_their_sources(name) -> None:
    found = gpus.gpu(name)
    assert found.source
    assert found.fp16 >= 2 * found.fp32 * 0.99
    assert found.tf32 is None or found.tf32 == pytest.approx(found.fp16 / 2, rel=0.01)
    assert found.fp8 is None or found.fp8 == pytest.approx(2 * found.fp16, rel=0.01)
