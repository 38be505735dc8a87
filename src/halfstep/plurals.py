"""A number with its noun, singular or plural: "1 step", "3 steps"."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; without `plural`, the plural is the noun plus "s"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
