"""The record of a write to values that the backward still reads, which autograd does not notice."""

from __future__ import annotations

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HiddenWrite:
    """A write between the forward and the backward of an operator.

    Attributes:
        op: Name of the operator that saved the values, such as "exp".
        by: Name of the operator that wrote to them, such as "div_".
        module: Path of the module of the operator that saved them.
        site: The line of the write.
        saved_at: The line of the operator.
    """

    op: str
    by: str
    module: str = ""
    site: Site | None = None
    saved_at: Site | None = None
