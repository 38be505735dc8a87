"""The bars of memory: the parts of a row are means over its seeds, as the bar is."""

import pytest

from compare.synthetic import summary
from halfstep.compare.cells.results import from_summary
from halfstep.compare.output.report import facts
from halfstep.compare.rows.rows import rows_by_arm

MIB = 2**20


def test_the_parts_of_a_bar_are_means_over_the_seeds(make_grid):
    grid = make_grid(("fp32",), (0, 1))
    results = [
        from_summary(
            cell,
            summary(peak_memory_bytes=peak * MIB, held_bytes={"parameters": part * MIB}),
        )
        for cell, peak, part in zip(grid.cells, (300, 100), (290, 90), strict=True)
    ]
    (bar,) = facts.memory(rows_by_arm(grid, results))
    (part,) = bar["parts"]
    assert part["share"] == pytest.approx(190 / 200)
    assert part["text"] == "190 MiB"
    assert bar["rest"] == "10 MiB"
    assert len(part["source"].split()) == 2
