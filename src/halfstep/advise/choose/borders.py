"""The borders of exceptions: the sites inside, and results that leave in half precision."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from halfstep.advise.choose.exponents import Exponents
from halfstep.advise.choose.record import floating
from halfstep.formats import FORMATS, format_name
from halfstep.formats.dtypes import HALVES
from halfstep.formats.positions import MOST, counts_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from halfstep.advise.choose.record import Record
    from halfstep.advise.choose.single_calls import Dtypes
    from halfstep.advise.choose.sites import CallKey, Site


def leaving(recorded: Record, exceptions: Collection[str]) -> set[Site]:
    """Return the excepted sites whose results, and their gradients, pass on in half precision."""
    sites = [call.key.site for call in recorded.calls]
    inside = [_exception_around(site, exceptions) for site in sites]
    following = [*inside[1:], ""]
    return {
        site
        for site, here, after in zip(sites, inside, following, strict=True)
        if here and here != after
    }


def about_to_overflow(
    recorded: Record,
    formats: Mapping[Site, str],
    exceptions: Collection[str],
    bits: float,
) -> Site | None:
    """Return an excepted operator of a module whose result is close to overflow, or None.

    Args:
        recorded: The recorded steps in fp32.
        formats: The half format of the results of each site without exceptions.
        exceptions: The patterns of the exceptions.
        bits: The headroom in bits below which a result is close to overflow.
    """
    calls = [call.key.site for call in recorded.calls]
    for site, following in itertools.pairwise(calls):
        if site.pattern not in exceptions or site.is_whole_module or not site.module:
            continue
        ranges, format_ = recorded.forward.get(site), formats.get(site)
        if ranges is None or format_ is None or covered(following, exceptions):
            continue
        if ranges.headroom(FORMATS[format_]) < bits:
            return site
    return None


def _exception_around(site: Site, exceptions: Collection[str]) -> str:
    """Return the module exception that a site is in, "operators" for an operator's, "" for none.

    All operator exceptions count as one, because results between them stay in fp32.
    """
    if not covered(site, exceptions):
        return ""
    of_modules = [each for each in exceptions if f"{site.module}.".startswith(f"{each}.")]
    return max(of_modules, key=len, default="operators")


def covered(site: Site, exceptions: Collection[str]) -> bool:
    """Tell whether a site or a module around it is an exception."""
    inside = f"{site.module}."
    return site.pattern in exceptions or any(inside.startswith(f"{each}.") for each in exceptions)


def is_operator_of(pattern: str, module: str) -> bool:
    """Tell whether a pattern names an operator or a module directly inside a module."""
    return pattern.startswith(f"{module}.") and "." not in pattern.removeprefix(f"{module}.")


def around(module: str) -> str:
    """Return the name of the parent module, "" for the model."""
    return module.rpartition(".")[0]


def half_sites(dtypes: Mapping[CallKey, Dtypes]) -> dict[Site, str]:
    """Return the sites that return half-precision tensors, each with the format.

    An operator that autocast runs in fp32 is not among them: it takes half-precision tensors, but
    its results do not have the limits of a half format.
    """
    return {
        key.site: format_name(dtype)
        for key, each in dtypes.items()
        for dtype in each.outputs
        if dtype in HALVES
    }


def counted_up(recorded: Record) -> dict[Site, float]:
    """Return the sites that are given rising whole numbers, such as positions, with the largest."""
    found: dict[Site, float] = {}
    for call in recorded.calls:
        for each in floating((call.args, call.kwargs)):
            if not 1 < each.numel() <= MOST:
                continue
            values = each.detach().double().flatten()
            if counts_up(values[:3]) and counts_up(values):
                site = call.key.site
                found[site] = max(found.get(site, 0.0), values[-1].item())
    return found


def is_masked(recorded: Record, site: Site) -> bool:
    """Tell whether the largest results of a site are one negative constant, as from a mask.

    Args:
        recorded: The recorded steps in fp32; only the last one is checked.
        site: A site with recorded calls.
    """
    outputs = [out.flatten().float() for call in recorded.calls_of(site) for out in call.outputs]
    found = torch.cat(outputs) if outputs else torch.zeros(0)
    found = found[found.isfinite()]
    if not found.numel():
        return False
    largest = found[found.abs() > found.abs().max() / 2]
    return bool((largest == largest[0]).all()) and float(largest[0]) < 0


def overflowed_before(
    recorded: Record, formats: Mapping[Site, str], exceptions: Collection[str]
) -> bool:
    """Tell whether an excepted result overflows in a recorded step, but not in the last.

    Only the last step is rehearsed, so a rehearsal could not show that the exception is needed.

    Args:
        recorded: The recorded steps in fp32.
        formats: The half format of the results of each site without exceptions.
        exceptions: The patterns of the exceptions.
    """
    for site, format_ in formats.items():
        ranges = recorded.forward.get(site)
        if ranges is None or not covered(site, exceptions):
            continue
        if ranges.headroom(FORMATS[format_]) >= 0:
            continue
        last = sum(
            (Exponents.of(out) for call in recorded.calls_of(site) for out in call.outputs),
            Exponents.none(),
        )
        if last.headroom(FORMATS[format_]) >= 0:
            return True
    return False
