"""Compares the names in a state with those of a module, to find what tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Renaming:
    """A change of the names in a state after which they are those of a module.

    Attributes:
        count: Number of names that then match, with the shapes of their tensors.
        removed: The prefix to remove from the names of the state; "" for none.
        added: The prefix to add to them; "" for none.
        inside: The entry of the state that contains the names; "" for none.
    """

    count: int = 0
    removed: str = ""
    added: str = ""
    inside: str = ""


def renaming(state: Mapping[str, Any], shapes: Mapping[str, Any]) -> Renaming:
    """Return the change after which the most names match.

    Args:
        state: The tensors, or whatever has their shape, by name; an entry may be a state itself.
        shapes: The shapes of a module's parameters by name.
    """
    others = {str(name): getattr(each, "shape", None) for name, each in state.items()}
    entries = {str(name): each for name, each in state.items() if isinstance(each, Mapping)}
    inside = {name: _matches(each, shapes) for name, each in entries.items()}
    changes = [
        *(Renaming(count, removed=text) for text, count in _prefixes(others, shapes).items()),
        *(Renaming(count, added=text) for text, count in _prefixes(shapes, others).items()),
        *(Renaming(count, inside=text) for text, count in inside.items() if count),
    ]
    return max(changes, key=lambda each: each.count, default=Renaming())


def _matches(state: Mapping[str, Any], shapes: Mapping[str, Any]) -> int:
    return sum(getattr(state.get(name), "shape", None) == shape for name, shape in shapes.items())


def _prefixes(longer: Mapping[str, Any], shorter: Mapping[str, Any]) -> Counter[str]:
    """Count the names that equal another one after a prefix, and have its shape, by prefix."""
    found: Counter[str] = Counter()
    for name, shape in longer.items():
        at = name.find(".") + 1
        while at:
            if shorter.get(name[at:]) == shape is not None:
                found[name[:at]] += 1
            at = name.find(".", at) + 1
    return found
