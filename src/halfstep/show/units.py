"""Formats figures for people: with a few digits and a common unit.

The terminal, Markdown, LaTeX and the pages all use these functions, so they agree on every digit.
"""

from __future__ import annotations

import math

MISSING = "-"


def duration(seconds: float) -> str:
    """Write a duration in at most six characters: 9.4s, 3m07s, 2h05m."""
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def milliseconds(seconds: float) -> str:
    """Write a time in milliseconds: with three digits below a second, else as a whole number."""
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:.0f}"


def predicted_milliseconds(seconds: float) -> str:
    """Write a predicted time in milliseconds with two digits; its interval allows no more."""
    return two_digits(1000 * seconds)


def two_digits(number: float) -> str:
    """Write a rough figure with two significant digits and no exponent: 0.83, 5.4, 540,000."""
    rounded = float(f"{number:.1e}")
    decimals = 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(decimals, 0)}f}"


def percent(share: float) -> str:
    """Write a share of 0 to 1 in percent, without the percent sign."""
    return f"{100 * share:.2f}"


def small_share(share: float) -> str:
    """Write a share of 0 to 1 in percent; a positive one that rounds to 0.0% becomes "<0.1%"."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def points(share: float) -> str:
    """Write a difference of two shares in percentage points, with plus or minus."""
    text = f"{100 * share:+.2f}"
    return "0.00" if text in {"+0.00", "-0.00"} else text


def margin(share: float) -> str:
    """Write a tolerated loss of accuracy: 1 point, 0.5 points."""
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def rate(images_per_second: float) -> str:
    """Write images per second."""
    return f"{images_per_second:.1f}" if images_per_second < 100 else f"{images_per_second:.0f}"


def count(number: float) -> str:
    """Write a count, or the mean of counts."""
    return f"{number:.0f}" if number.is_integer() else f"{number:.1f}"


def ratio(number: float) -> str:
    """Write how many times one figure is another."""
    return f"{number:.2f}"


def ratio_interval(low: float | None, high: float | None) -> str:
    """Write the interval of a ratio; "" if there is none, or if both ends are written alike."""
    if low is None or high is None or ratio(low) == ratio(high):
        return ""
    return f"[{ratio(low)}, {ratio(high)}]"


def mebibytes(number: float) -> str:
    """Write bytes in MiB."""
    return f"{number / 2**20:.0f}"


def cosine(number: float) -> str:
    """Write a cosine, or a spread of cosines, with four decimals; further digits are rounding."""
    return f"{number:.4f}"


def plain(number: float) -> str:
    """Write a number of no particular unit with four significant digits."""
    return f"{number:.4g}"
