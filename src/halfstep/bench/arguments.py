"""Reads what the command line of a bench says: counts with commas between."""

from __future__ import annotations

from halfstep.errors import UserError


def parse_counts(flag: str, text: str, *, least: int) -> tuple[int, ...]:
    """Read `--workers 0,1,2,4`; the order given is no matter, the smallest comes first.

    Args:
        flag: What it is the value of.
        text: What was given.
        least: The smallest number that makes sense.

    Raises:
        UserError: If it is no list of whole numbers of at least `least`, or has one twice.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(
            f"{flag} is {text!r}; allowed: whole numbers with commas, as in {flag} {least},2,4"
        )
    numbers = sorted(int(part) for part in parts)
    if numbers[0] < least:
        raise UserError(f"{flag} is {text!r}; allowed: numbers from {least} on")
    for number in numbers:
        if numbers.count(number) > 1:
            raise UserError(f"{flag} is {text!r}, which names {number} twice; name it once")
    return tuple(numbers)
