"""Examines the names of the classes: missing values, and names that are easily confused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.data.sources import spelling
from halfstep.train.data.sources.faults import Notice, listing

if TYPE_CHECKING:
    from collections.abc import Sequence

_MISSING = frozenset({"", "nan", "+nan", "-nan", "<na>", "#n/a"})
"""Texts that Python, pandas and spreadsheets write for a missing value, in lower case. "NA", "none"
and "null" are not among them, because classes may have these names."""


def is_missing(value: str) -> bool:
    """Tell whether a value is missing: it is empty, or a text such as "nan" that stands for it."""
    return value.strip().lower() in _MISSING


def examine(classes: Sequence[str]) -> tuple[Notice, ...]:
    """Return a notice of the classes whose names differ only in case or Unicode form.

    Raises:
        UserError: If the name of a class is a missing value.
    """
    for name in classes:
        if is_missing(name):
            raise UserError(
                f"a class has the name {name!r}, which stands for a missing label; rename the "
                "class, or leave its images out"
            )
    alike = spelling.groups(classes)
    if not alike:
        return ()
    named = listing(" and ".join(spelling.told_apart(*group)) for group in alike)
    text = f"classes whose names differ only in case or Unicode form: {named}; merge them"
    return (Notice("spelling", f"{text}, if they are the same class"),)
