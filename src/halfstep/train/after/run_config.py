"""Reads the config of a run without torch, so that a wrong directory is refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.config.data import ColumnsConfig, CsvConfig
from halfstep.train.config.files import load

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.train.config import Config
    from halfstep.train.config.files import Overrides


def config_of(run: Path, device: str | None = None, options: Overrides = ()) -> Config:
    """Return the config of a run, with overrides.

    Raises:
        UserError: If the directory holds no run, or the overrides do not fit its config.
    """
    config_file = run / "config.yaml"
    if not config_file.is_file():
        problem = "does not exist"
        if run.exists():
            problem = "holds no config.yaml" if run.is_dir() else "is a file"
        raise UserError(
            f"{str(run)!r} is not a run directory: it {problem}; write one that halfstep train "
            "wrote, such as runs/digits/fp32-seed0"
        )
    return load(str(config_file), options, {"device": device})


def columns_of(run: Path, columns: ColumnsConfig | None) -> ColumnsConfig:
    """Return the column names for a CSV file: `columns`, or by default those of the run's data."""
    if columns is not None:
        return columns
    data = config_of(run).data
    return data.columns if isinstance(data, CsvConfig) else ColumnsConfig()
