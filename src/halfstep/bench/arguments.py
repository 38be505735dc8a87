"""Parses the arguments of a bench: numbers separated by commas."""

from __future__ import annotations

from halfstep.errors import UserError


def parse_counts(flag: str, text: str, *, least: int) -> tuple[int, ...]:
    """Parse the value of a flag such as `--workers 0,1,2,4` into ascending numbers.

    Args:
        flag: The name of the flag.
        text: The value of the flag.
        least: The smallest number that is allowed.

    Raises:
        UserError: If the value is not a list of whole numbers of at least `least`, or contains a
            number twice.
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
