from compare.synthetic import summary
from halfstep.compare.cells.results import from_summary
from halfstep.compare.cells.versions import different_versions, mixed


def test_cells_of_other_versions_or_machines_are_named(make_grid):
    grid = make_grid(("fp32", "fp16", "bf16"))
    results = [
        from_summary(cell, summary(), {"torch": torch, "device_name": "a GPU"})
        for cell, torch in zip(grid.cells, ("2.11.0", "2.15.0", "2.15.0"), strict=True)
    ]
    assert mixed(results) == [
        (
            "runs differ in torch: 2.11.0 (fp32 seed 0), 2.15.0 (fp16 seed 0 and 1 more); "
            "--fresh repeats all of them"
        )
    ]
    assert mixed(results[1:]) == []


def test_a_result_of_this_version_differs_in_nothing(make_grid, monkeypatch):
    monkeypatch.setattr("halfstep.compare.cells.versions.versions", lambda: {"torch": "2.15.0"})
    (cell,) = make_grid(("fp32",)).cells
    assert different_versions(from_summary(cell, summary(), {"torch": "2.15.0"})) == []
    assert different_versions(from_summary(cell, summary(), {"torch": "2.11.0"})) == [
        "torch 2.11.0 (now 2.15.0)"
    ]
    assert different_versions(from_summary(cell, summary())) == []
