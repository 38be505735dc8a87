"""Recognises names that differ only in letter case or in their Unicode form.

macOS may store "é" as two code points (NFD), other systems as one (NFC); macOS and Windows ignore
letter case. So a table that was written on one system can name files differently from another.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from typing import TYPE_CHECKING

from halfstep.errors import closest

if TYPE_CHECKING:
    from collections.abc import Iterable


def key(name: str) -> str:
    """Return a form of a name that is equal for names that differ only in case or Unicode form."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).lower())


def groups(names: Iterable[str]) -> list[list[str]]:
    """Return the names of each group of two or more that have the same `key`, in their order."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        alike[key(name)].append(name)
    return [group for group in alike.values() if len(group) > 1]


def told_apart(*names: str) -> list[str]:
    r"""Return the names in quotes, with escapes instead of letters if they might look alike.

    A screen shows both Unicode forms of "é" alike; as escapes, they are '\xe9' and 'e\u0301'.
    """
    look_alike = not all(unicodedata.is_normalized("NFC", name) for name in names)
    return [ascii(name) if look_alike else repr(name) for name in names]


def hint(given: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that was probably meant, or "" if none is close."""
    known = list(known)
    for name in known:
        if key(name) == key(given):
            one, other = told_apart(given, name)
            return f"; {one} and {other} differ only in case or Unicode form: write both alike"
    return closest(given, known)
