"""A comparison's rows are predicted once, and never at the price of the comparison."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from halfstep.advise import compared
from halfstep.advise.compared import predict
from halfstep.advise.predict import forecast, measured
from halfstep.advise.predict.gpus import gpu, parse_gpus
from halfstep.compare.cells.directory import COMPARISON
from halfstep.compare.cells.results import Result
from halfstep.compare.output.records import as_json
from halfstep.compare.plan.grid import Arm
from halfstep.compare.plan.plan import plan
from halfstep.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.compare.plan.grid import Plan

TINY = ("data.resolution=8", "model.args={channels: [8, 8, 8, 8]}")


def planned(out: Path, recipes: str = "fp32,fp16,fp8", *options: str, **more: object) -> Plan:
    given = (*TINY, *options)
    return plan("digits", recipes=recipes, seeds="2", options=given, device="cpu", out=out, **more)  # type: ignore[arg-type]


def test_rows_are_traced_once_for_all_gpus_and_read_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    there = [gpu("h100"), gpu("t4")]
    asked = planned(tmp_path)
    first = predict(asked, there, told.append)
    assert told == ["cost of fp32 and tf32", "cost of fp16", "cost of fp8"]
    assert [each.key for each in first] == ["h100_sxm", "t4"]
    for each in first:
        fp32, fp16, fp8 = each.rows
        assert fp32.seconds is not None
        assert fp16.seconds is not None
        assert fp16.seconds.low < fp16.seconds.value < fp16.seconds.high
        assert (fp8.seconds is None) == (each.key == "t4")
        assert ("has no FP8 units" in fp8.reason) == (each.key == "t4")
    on_h100, on_t4 = first
    (tf32,) = on_h100.references
    assert (tf32.arm.recipe, tf32.speed_up) == ("tf32", None)
    assert tf32.seconds is not None
    assert on_h100.rows[0].seconds is not None
    assert on_h100.rows[0].speed_up is not None
    quotient = tf32.seconds.value / on_h100.rows[0].seconds.value
    assert quotient == pytest.approx(on_h100.rows[0].speed_up.value)
    assert on_t4.references == ()  # relative to fp32, which has a row

    results = [Result(cell, "pending") for cell in asked.grid.cells]
    written = json.dumps(as_json(asked.grid, results, first))
    (tmp_path / COMPARISON).write_text(written)
    told.clear()
    # More epochs and other seeds change no step; larger batches do.
    assert predict(planned(tmp_path, "fp32,fp16,fp8", "epochs=2"), there, told.append) == first
    assert not told
    # So do operators that the user has measured since.
    own = tmp_path / "h100.json"
    own.write_text("{}")
    with monkeypatch.context() as since:
        since.setattr(measured, "files", lambda: [own])
        since.setattr(measured, "every", list)
        since.setattr(forecast, "every", list)
        predict(planned(tmp_path, "fp16"), there[:1], told.append)
    assert {*told} == {"cost of fp32 and tf32", "cost of fp16"}
    told.clear()
    larger = predict(planned(tmp_path, "fp32,fp16", "batch_size=64"), there[:1], told.append)
    assert told
    assert larger[0].rows[1].seconds != first[0].rows[1].seconds
    (tmp_path / COMPARISON).write_text('{"predicted": {"h100_sxm": {"rows": [{"of": "others"}]}}}')
    monkeypatch.setattr(compared, "of_config", None)  # whatever fails, the comparison goes on
    (broken,) = predict(asked, there[:1])
    assert "TypeError" in broken.rows[0].reason


def test_points_of_a_grid_have_steps_of_their_own(tmp_path: Path) -> None:
    asked = planned(tmp_path, "fp16", axes=["batch_size=32,256"])
    (found,) = predict(asked, [gpu("t4")])
    assert [each.arm for each in found.references] == [
        Arm("fp32", arm.point) for arm in asked.grid.arms
    ]
    assert found.references[0].memory != found.references[1].memory
    small, large = (row.memory for row in found.rows)
    assert small is not None
    assert large is not None
    assert large > small


def test_gpus_are_named_once_each_or_none() -> None:
    assert parse_gpus("none") == ()
    assert [each.key for each in parse_gpus("T4, h100")] == ["t4", "h100_sxm"]
    for wrong in ("", "t4,t4", "h101"):
        with pytest.raises(UserError):
            parse_gpus(wrong)
