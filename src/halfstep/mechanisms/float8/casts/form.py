"""Which operands a cast of a matrix makes."""

from __future__ import annotations

from typing import NamedTuple

MULTIPLE = 16
"""The length of a sum must be a multiple of it (cuBLASLt, section 3.1.3)."""


class Wanted(NamedTuple):
    """Which operands a matrix becomes.

    Attributes:
        rows: Whether it becomes a factor that is summed over its columns.
        columns: Whether it becomes a factor that is summed over its rows: its transpose.
        rowwise: Whether each row of an operand has a scale of its own.
    """

    rows: bool
    columns: bool
    rowwise: bool
