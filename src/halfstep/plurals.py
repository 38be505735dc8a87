"""A number with its noun, singular or plural: "1 step", "3 steps"."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; the plural is the noun with an "s" unless it is given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
