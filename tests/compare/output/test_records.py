import csv
import io
import json

import pytest

from compare.synthetic import fill, summary
from halfstep.compare.cells.results import Result, from_summary
from halfstep.compare.output.records import as_json, csv_text, flat_records, write_parquet


def finished(cell, best):
    return from_summary(cell, summary(best_accuracy=best))


def test_json_holds_rows_and_the_summaries_that_they_come_from(make_grid):
    grid = make_grid(("fp32", "fp16"))
    results = [finished(grid.cells[0], 0.9), Result(grid.cells[1], "crashed", "killed by SIGSEGV")]
    data = json.loads(json.dumps(as_json(grid, results), allow_nan=False))
    assert data["rows"][0]["measures"]["best_accuracy"]["mean"] == 0.9
    assert data["cells"][0]["summary"]["best_accuracy"] == 0.9
    assert data["cells"][1]["reason"] == "killed by SIGSEGV"
    assert data["complete"] is False
    assert data["verdicts"][0]["answer"] == "not settled"


def test_a_ratio_is_recorded_with_the_ends_of_its_interval(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1))
    results = [
        from_summary(cell, summary(images_per_second=rate))
        for cell, rate in zip(grid.cells, (100.0, 200.0, 100.0, 220.0), strict=True)
    ]
    speed = as_json(grid, results)["rows"][1]["speed"]
    assert speed["mean"] == pytest.approx((2.0 * 2.2) ** 0.5)
    assert speed["low"] < 2.0
    assert speed["high"] > 2.2
    assert speed["seeds"] == 2


@pytest.fixture
def filled(make_grid):
    grid = make_grid(("fp32", "fp16"), (0, 1, 2), points=(("lr=0.1",), ("lr=0.4",)))
    return grid, fill(grid)


def test_the_number_of_processes_is_in_all_records(make_grid):
    for processes in (1, 2):
        grid = make_grid(("fp32",), processes=processes)
        results = [finished(grid.cells[0], 0.9)]
        assert as_json(grid, results)["processes"] == processes
        assert flat_records(grid, results)[0]["processes"] == processes


def test_csv_has_a_line_a_run_and_reads_back(filled):
    grid, results = filled
    records = list(csv.DictReader(io.StringIO(csv_text(grid, results))))
    assert len(records) == 12
    assert {record["lr"] for record in records} == {"0.1", "0.4"}
    assert float(records[0]["best_accuracy"]) == results[0].number("best_accuracy")
    (crashed, _) = [record for record in records if record["status"] == "crashed"]
    assert (crashed["reason"], crashed["best_accuracy"]) == ("killed by SIGSEGV", "")


def test_parquet_holds_the_same_records(filled, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(tmp_path / "cells.parquet", *filled)
    assert parquet.read_table(tmp_path / "cells.parquet").to_pylist() == flat_records(*filled)
