"""What the committed result of the loader's benchmark says, and that its pixels are compared."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loader.py"


@pytest.fixture(scope="module")
def loader():
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("bench_loader", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
    sys.path.remove(str(SCRIPT.parent))


def test_the_committed_result_bears_the_claim_out(loader):
    result = json.loads((loader.RESULTS / "loader.json").read_text())
    assert 55 <= result["pictures"]["mean_kilobytes"] <= 75
    ours = {row["task"]: row for row in result["rows"] if row["way"] == "halfstep"}
    assert set(ours) == {"train", "validate"}
    for row in ours.values():
        assert row["ratio_low"] >= 1.5
        assert row["largest_difference"] <= 1


@pytest.mark.filterwarnings("ignore:The image decoding and:DeprecationWarning")
@pytest.mark.parametrize("task", ["train", "validate"])
def test_other_pixels_are_not_timed(loader, task, monkeypatch):
    jpegs = loader.sample_jpegs(2)
    ways = {way: loader.ways(task)[way] for way in (loader.REFERENCE, "halfstep")}
    monkeypatch.setattr(loader, "ways", lambda task: ways)
    assert [row.way for row in loader.measure(task, jpegs, rounds=2)] == list(ways)
    right = ways["halfstep"]
    ways["halfstep"] = lambda encoded: right(encoded).bitwise_xor(torch.tensor(1).byte())
    with pytest.raises(AssertionError, match="other pixels than v2"):
        loader.measure(task, jpegs, rounds=2)
