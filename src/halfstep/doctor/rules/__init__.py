"""The rules of doctor: one file per cause, which defines `RULE`.

`rules` imports every file of the subpackages, so a new rule needs no registration.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.doctor.verdict import Rule


@cache
def rules() -> tuple[Rule, ...]:
    """Return all rules, sorted by their rows in the catalogue of failures, then by code.

    Raises:
        RuntimeError: If two rules have the same code.
    """
    found = [
        importlib.import_module(each.name).RULE
        for each in pkgutil.walk_packages(__path__, f"{__name__}.")
        if not each.ispkg
    ]
    codes = [each.code for each in found]
    if len(set(codes)) < len(codes):
        raise RuntimeError(f"two rules have the same code: {sorted(codes)}")
    return tuple(sorted(found, key=lambda each: (each.rows, each.code)))
