"""Turns the notes of a signal into a record of the evidence."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from halfstep.doctor.record.sites import site

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = TypeVar("Kind")
_CASTS: dict[str, Callable[[Any], Any]] = {"Site": site, "tuple": tuple, "dict": dict}


def frozen(kind: type[Kind], notes: Any, **given: Any) -> Kind:
    """Return a record; its fields that are not given are the attributes of the notes.

    Args:
        kind: The class of the record, a dataclass.
        notes: An object with an attribute for each other field: a mark for a site, and any
            iterable or mapping for a tuple or dict.
        given: Fields that the notes do not have under these names.
    """
    values = dict(given)
    for each in fields(kind):  # type: ignore[arg-type]  # every record is a dataclass
        if each.name not in given:
            cast = _CASTS.get(str(each.type).partition("[")[0].partition(" ")[0])
            value = getattr(notes, each.name)
            values[each.name] = cast(value) if cast else value
    return kind(**values)
