"""The whole of `halfstep compare`: the plan, its runs here or on a cluster, the tables."""

from __future__ import annotations

import signal
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console

from halfstep.compare import comparison
from halfstep.compare.cells import directory, warm
from halfstep.compare.cells.cluster import RayCluster, parse_place
from halfstep.compare.cells.slurm import SlurmCluster
from halfstep.compare.output import table, tables
from halfstep.compare.plan import plan as planning
from halfstep.errors import UserError
from halfstep.show.text import print_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.compare.cells.schedule import Place
    from halfstep.compare.plan.grid import Plan
    from halfstep.compare.rows.predicted import Prediction

    Predict = Callable[[Plan, Sequence[Gpu] | None, Callable[[str], None]], tuple[Prediction, ...]]
    """Predicts the rows of a plan on GPUs, and reports what it predicts next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `halfstep compare`, as on the command line.

    Attributes:
        config: The name of a shipped config, or the path of a YAML file.
        recipes: Names of recipes, separated by commas.
        seeds: The number of seeds, or the seeds.
        looks: The numbers of seeds after which rows are judged.
        margin: The loss of accuracy that is tolerated, in points.
        aa: Whether the first recipe is trained once more, with other seeds.
        control: Whether a recipe that loses accuracy by design is trained too.
        options: Overrides of the config, for all cells.
        axes: Overrides with several values, for the points of the grid.
        device: The device of the cells, one at a time.
        devices: Devices to use in parallel.
        processes: The number of processes of a cell.
        on: The cluster that runs the cells; None for this machine.
        time_limit: The time after which a cell ends.
        exports: Formats that need extra packages.
        tag: The suffix of the comparison's directory.
        out: The comparison's directory.
        gpus: The GPUs to predict the rows on; None for the default.
        fresh: Whether to repeat the cells that already have a result.
    """

    config: str
    recipes: str
    seeds: str | None
    looks: str | None
    margin: float
    aa: bool
    control: bool
    options: Sequence[str]
    axes: Sequence[str]
    device: str | None
    devices: str | None
    processes: int
    on: str | None
    time_limit: str | None
    exports: tuple[str, ...]
    tag: str | None
    out: Path | None
    gpus: tuple[Gpu, ...] | None
    fresh: bool

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            UserError: If the arguments are wrong, or a cell could not run.
        """
        return planning.plan(
            self.config,
            recipes=self.recipes,
            seeds=self.seeds,
            looks=self.looks,
            margin=self.margin,
            aa=self.aa,
            control=self.control,
            options=self.options,
            axes=self.axes,
            device=self.device,
            devices=self.devices,
            processes=self.processes,
            here=self.on is None,
            time_limit=self.time_limit,
            tag=self.tag,
            out=self.out,
        )


def run(request: Request, predict: Predict, *, forks: bool) -> bool:
    """Run the missing cells of a comparison, print its tables, and tell whether all cells ended.

    Args:
        request: The arguments.
        predict: Predicts the rows on GPUs.
        forks: Whether cells may be forked from a process that has done the imports.

    Returns:
        Whether no cell crashed.

    Raises:
        UserError: If an argument is wrong; no cell has run then.
        KeyboardInterrupt: After a Ctrl-C, with a message that says how many results exist.
    """
    with warm.server() if forks and request.on is None else nullcontext() as python:
        planned = request.plan()
        console = Console()

        @cache
        def predicted() -> tuple[Prediction, ...]:
            with Console(stderr=True).status("predicting") as status:
                return predict(
                    planned, request.gpus, lambda what: status.update(f"predicting the {what}")
                )

        with _ended_too(), _place(request, planned) as place:
            judged, results = comparison.compare(
                planned,
                planning.train_command,
                console,
                fresh=request.fresh,
                place=place,
                predict=predicted,
                python=python,
            )
    table.show(console, judged, results, predicted())
    written = tables.export(planned.directory, judged, results, request.exports)
    names = [tables.REPORT, tables.TABLE, directory.COMPARISON, *written]
    print_text(console, f"{', '.join(names[:-1])} and {names[-1]} are in {planned.directory}")
    return all(result.status != "crashed" for result in results)


@contextmanager
def _place(request: Request, planned: Plan) -> Iterator[Place | None]:
    if request.on is None:
        yield None
        return
    name, address, settings = parse_place(request.on)
    if request.devices is not None:
        raise UserError(
            f"--on {request.on} and --devices {request.devices} are both given; the cluster picks "
            "the devices"
        )
    device, processes, limit = planned.grid.device, planned.grid.processes, planned.time_limit
    command = planning.train_command
    cluster: RayCluster | SlurmCluster
    if name == "ray":
        cluster = RayCluster(address, device, command, processes=processes, time_limit=limit)
    else:
        cluster = SlurmCluster(
            planned.directory,
            device,
            command,
            processes=processes,
            time_limit=limit,
            settings=settings,
        )
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def _ended_too() -> Iterator[None]:
    """End the running cells, too, if SIGTERM ends the comparison; the default would orphan them."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
