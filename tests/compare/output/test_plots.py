"""The PNG plots: lines that coincide show through each other."""

import pytest

from halfstep.compare.output.plots import write_plots


def test_each_arm_has_its_own_colour_and_dashes(make_grid, fill, tmp_path, monkeypatch):
    axes = pytest.importorskip("matplotlib.axes")
    drawn = []
    plot = axes.Axes.plot

    def record(axis, *values, **looks):
        drawn.append((looks["color"], looks["linestyle"]))
        return plot(axis, *values, **looks)

    monkeypatch.setattr(axes.Axes, "plot", record)
    grid = make_grid(("fp32", "fp16", "bf16"), (0, 1))
    write_plots(tmp_path, grid, fill(grid))
    first, second = drawn[:3], drawn[3:6]
    assert first == second  # the seeds
    assert len({colour for colour, _ in first}) == len({dashes for _, dashes in first}) == 3
