"""A number with its noun, singular or plural: "1 step", "3 steps"."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun; the plural is the noun with an "s"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
