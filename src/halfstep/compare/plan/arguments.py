"""Parses the command line of a comparison: recipes, seeds, axes, devices and the time limit.

The functions turn text into plain data. `plan` checks whether the config accepts the values.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.recipe.parse import refuse_repeated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Point = tuple[str, ...]
"""One override "key=value" of the config for each axis of the grid."""

MOST = 10_000
"""Maximum number of cells: a typing error (`--seeds 999999999`) must not fill the memory."""

SEEDS = 5
"""Seeds of a comparison that names none: most recipes as accurate as the first are then settled."""

_AXIS = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)=(.+)", re.DOTALL)
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_DEVICE = re.compile(r"cpu|(?:cuda:)?(\d{1,3})")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse `--seeds`: one number N means the seeds 0 to N - 1, a list with commas is the seeds.

    Raises:
        UserError: If the text is neither, or if a seed is named twice.
    """
    parts = [part.strip() for part in text.split(",")]
    trailing_comma = len(parts) > 1 and not parts[-1]
    numbers = [_whole_number(part, text) for part in (parts[:-1] if trailing_comma else parts)]
    if len(parts) > 1:
        refuse_repeated("--seeds", text, numbers)
        return tuple(numbers)
    if numbers[0] == 0:
        raise _bad_seeds(text)
    refuse_too_many(f"--seeds {text.strip()[:20]}", numbers[0])
    return tuple(range(numbers[0]))


def parse_looks(text: str, seeds: int | None) -> tuple[int, ...]:
    """Parse `--looks 4,8,16`: the numbers of seeds after which rows are judged.

    Args:
        text: The numbers, increasing, each at least 2.
        seeds: The number of seeds of the comparison; None if it is that of the last look.

    Raises:
        UserError: If the numbers do not increase from 2 on, or do not end at `seeds`.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [int(part) if part.isascii() and part.isdigit() else 0 for part in parts]
    if len(numbers) < 2 or numbers[0] < 2 or numbers != sorted(set(numbers)):
        raise UserError(
            f"--looks is {text!r}; allowed: two or more increasing numbers of seeds from 2 on, as "
            "in --looks 4,8,16"
        )
    refuse_too_many(f"--looks {text}", numbers[-1])
    if seeds is not None and numbers[-1] != seeds:
        raise UserError(
            f"--looks {text} ends at {numbers[-1]} seeds, but --seeds gives {seeds}; leave --seeds "
            f"out, or end the looks at {seeds}"
        )
    return tuple(numbers)


def parse_margin(points: float) -> float:
    """Convert `--margin` from points of accuracy to an accuracy of 0 to 1.

    Raises:
        UserError: If it is not above 0 and below 100.
    """
    if not 0 < points < 100:  # also refuses nan
        raise UserError(
            f"--margin is {points:g}; allowed: points of accuracy above 0 and below 100, as in "
            "--margin 0.5"
        )
    return points / 100


def parse_axes(given: Sequence[str]) -> tuple[Point, ...]:
    """Parse `--grid batch_size=256,1024 optimizer.lr=0.1,0.4` into all combinations of the values.

    Returns:
        The points of the grid; the last axis varies fastest. Without axes, one point without
        overrides.

    Raises:
        UserError: If an axis does not have the form key=value,value, or repeats a key or a value.
    """
    axes: dict[str, list[str]] = {}
    for text in given:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise UserError(
                f"--grid takes key=value,value,..., not {text!r}; write --grid batch_size=256,1024"
            )
        key = match[1]
        if key in axes:
            raise UserError(f"--grid has {key} twice; write all its values after one {key}=")
        values = [value.strip() for value in _split(match[2])]
        if not all(values):
            raise UserError(f"--grid {text!r} has an empty value; write --grid {key}=1,2")
        refuse_repeated("--grid", text, values)
        axes[key] = values
    refuse_too_many("--grid", math.prod(map(len, axes.values())))
    written = ([f"{key}={value}" for value in values] for key, values in axes.items())
    return tuple(itertools.product(*written))


def refuse_too_many(given: str, cells: int) -> None:
    """Refuse a request for more than `MOST` cells.

    Args:
        given: The flags that request the cells, for the message.
        cells: The number of cells.

    Raises:
        UserError: If there are more than `MOST` cells.
    """
    if cells > MOST:
        raise UserError(f"{given} asks for {cells} runs; allowed: {MOST} at most")


def parse_devices(text: str) -> tuple[str, ...]:
    """Parse `--devices 0,1,2,3` (numbers of GPUs), or "cpu,cpu" for two cells at a time on the CPU.

    Returns:
        The devices ("cuda:0" or "cpu"), in the given order.

    Raises:
        UserError: If the text is neither, mixes both, or names a GPU twice.
    """
    given = [part.strip() for part in text.split(",") if part.strip()]
    matches = [_DEVICE.fullmatch(part) for part in given]
    if not given or not all(matches) or len({part == "cpu" for part in given}) > 1:
        raise UserError(
            f"--devices is {text!r}; allowed: GPU numbers with commas (0,1,2,3), or cpu "
            "once for each run that is to train at the same time (cpu,cpu)"
        )
    if given[0] == "cpu":
        return tuple(given)
    numbers = [int(match[1]) for match in matches if match is not None]
    refuse_repeated("--devices", text, numbers)
    return tuple(f"cuda:{number}" for number in numbers)


def parse_time_limit(text: str, flag: str = "--time-limit") -> float:
    """Parse `--time-limit 30m`, and return seconds.

    Raises:
        UserError: If the text is not a positive duration.
    """
    match = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    limit = 3600.0 * hours + 60.0 * minutes + seconds
    if limit <= 0:
        raise UserError(
            f"{flag} is {text!r}; allowed: hours, minutes and seconds, as in 30m, 90s, 1h30m"
        )
    return limit


def _split(values: str) -> Iterator[str]:
    """Split the text at commas, except inside brackets and quotes, because values are YAML."""
    depth, quote, word = 0, "", ""
    for letter in values:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield word
            word = ""
            continue
        word += letter
    yield word


def _whole_number(part: str, text: str) -> int:
    if not (part.isascii() and part.isdigit()):
        raise _bad_seeds(text)
    return int(part)


def _bad_seeds(text: str) -> UserError:
    return UserError(
        f"--seeds is {text!r}; allowed: how many (3 means seeds 0, 1 and 2), "
        "or the seeds themselves with commas (0,7,9; write '7,' for seed 7 alone)"
    )
