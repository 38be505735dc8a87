"""Runs under several recipes and seeds, and one table with their results.

`plan` validates the request, and `grid` creates the cells; a cell is one run. `comparison` runs the
missing cells through `runner`, `directory` manages their files, and `results` and `table` report
their results. Each run of a config is a separate process: this package reads the run directories,
and calls the training loop only in `program`, for the objects of a program. A call of this package,
`halfstep.compare(build)`, calls `program.compare`.
"""

from halfstep.callable_module import make_callable
from halfstep.compare.program import compare

__all__ = ["compare"]

make_callable(__name__, compare)
