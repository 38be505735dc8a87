"""Changes that several rules suggest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.blocks import counter_around
from halfstep.doctor.record.source import difference, is_only_call, with_argument

if TYPE_CHECKING:
    from halfstep.doctor.record import OptimizerFacts
    from halfstep.doctor.record.rates import Schedule
    from halfstep.doctor.record.sites import Site

_POWERS = {"aten.rsqrt": "1e-3", "aten.reciprocal": "1e-2"}


def fp16_eps(op: str) -> str:
    """Return an eps to add to the argument of an operator, as text.

    With it, both the operator and its derivative are finite in fp16 where the argument is 0. The
    derivative of `rsqrt` raises the eps to the power of -1.5, that of `reciprocal` to -2.

    Args:
        op: The ATen operator of the forward pass.
    """
    return _POWERS.get(op, "1e-4")


def with_eps(optimizer: OptimizerFacts, eps: str) -> tuple[str, ...]:
    """Return a change that gives an optimizer another eps, as lines with "+" and "-".

    Args:
        optimizer: The optimizer; the change is made to the statement that created it.
        eps: The eps as source code: "1e-4".
    """
    made, names = optimizer.made_by, optimizer.arguments
    if "eps" in names:
        position = names.index("eps")
        changed = with_argument(made, optimizer.kind, "eps", eps, position=position)
        if changed is not None:
            return difference(made, changed)
    unchanged = [f"  {line}" for line in made.splitlines()]
    return (*unchanged, f"+ # give {optimizer.kind} the argument eps={eps}")


_LENGTHS = {
    "CosineAnnealingLR": ("T_max", 1),
    "OneCycleLR": ("total_steps", 2),
    "PolynomialLR": ("total_iters", 1),
    "LinearLR": ("total_iters", 3),
}
"""Name and position of the argument for the length of a scheduler, in its moves."""


def with_length(schedule: Schedule, length: int) -> tuple[str, ...]:
    """Return a change that gives a scheduler another length; in words if its call is unknown.

    Args:
        schedule: The scheduler; the change is made to the statement that created it.
        length: The length in moves.
    """
    made, kind = schedule.made_by, schedule.kind
    if kind in _LENGTHS:
        name, position = _LENGTHS[kind]
        changed = with_argument(made, kind, name, str(length), position=position)
        if changed is not None and schedule.made is not None:
            return (f"@ {schedule.made}", *difference(made, changed))
    return (f"+ # make {kind} with a length of {length}, the number of its moves",)


def moved(line: Site | None, after: Site | None) -> tuple[str, ...]:
    """Return a change that puts a call after another one; none if they are not calls alone.

    Args:
        line: The call.
        after: The other one.
    """
    if line is None or after is None or not (is_only_call(line.text) and is_only_call(after.text)):
        return ()
    return (
        f"@ {after}",
        f"  {after.text}",
        f"+ {line.text}",
        f"@ {line}",
        f"- {line.text}",
    )


_SQUARES = (
    (r"(?<![\w.])([A-Za-z_][\w.]*)\.(pow\(2(?:\.0)?\)|square\(\))", r"\1.float().\2"),
    (r"\)\.(pow\(2(?:\.0)?\)|square\(\))", r").float().\1"),
    (r"(?<![\w.])([A-Za-z_][\w.]*) ?\*\* ?2(?![\w.])", r"\1.float() ** 2"),
    (r"\) ?\*\* ?2(?![\w.])", r").float() ** 2"),
    (
        r"(?<![\w.])([A-Za-z_][\w.]*) ?\* ?\1\b(?![\w.(\[]| ?\*\*)",
        r"\1.float() * \1.float()",
    ),
)


def squares_in_fp32(line: str) -> str:
    """Return a line of code, changed so that its square is computed in fp32.

    Args:
        line: The line, for example "x.pow(2).mean()".

    Returns:
        The changed line; "" if the line contains no square or several squares.
    """
    code, mark, comment = line.partition("#")
    found = [re.subn(pattern, replacement, code) for pattern, replacement in _SQUARES]
    if sum(count for _, count in found) != 1:
        return ""
    return next(changed for changed, count in found if count) + mark + comment


def copied_state(kept_by: str) -> tuple[str, ...]:
    """Return the change of a statement that keeps a state without a copy.

    Args:
        kept_by: The statement, such as "best = model.state_dict()"; "" if it is unknown.
    """
    target, equals, value = kept_by.partition(" = ")
    if equals and value.endswith(".state_dict()") and value.count("(") == 1:
        return difference(kept_by, f"{target} = copy.deepcopy({value})")
    return ("+ # keep a copy of the state: copy.deepcopy(model.state_dict())",)


_OF_LOADERS = {"shuffle": 2, "drop_last": 8}
"""Positions of arguments of a DataLoader."""


def with_loader_argument(
    made: Site | None, made_by: str, name: str, *, value: bool
) -> tuple[str, ...]:
    """Return a change of the statement that makes a data loader; none if its call is unknown.

    Args:
        made: The line that makes it.
        made_by: The statement.
        name: Name of the argument: "shuffle" or "drop_last".
        value: Its new value.
    """
    if made is None or "sampler" in made_by or "**" in made_by:
        return ()
    new = with_argument(made_by, "DataLoader", name, str(value), position=_OF_LOADERS[name])
    return () if new is None or new == made_by else (f"@ {made}", *difference(made_by, new))


def without_seed(seeded: Site | None) -> tuple[str, ...]:
    """Return the change that sets a seed once, and not again and again.

    Args:
        seeded: The line that sets it in a loop.
    """
    if seeded is not None and is_only_call(seeded.text):
        return (f"- {seeded.text}",)
    words = "+ # set the seed once, before the training; or another one each time: seed + epoch"
    return (words, f"  {seeded.text}") if seeded else (words,)


def with_epoch_of_sampler(line: Site | None) -> tuple[str, ...]:
    """Return the change that tells the sampler of a loader the number of the epoch.

    Args:
        line: The line that goes over the loader: "for images, labels in loader:".
    """
    text = line.text if line else ""
    found = re.match(r"for .+ in (?:\w+\()?([\w.]+)\)?:$", text)
    epoch = counter_around((line.file, line.line, line.function)) if line else ""
    if found is None or not epoch:
        return ("+ # before each epoch: loader.sampler.set_epoch(epoch)", f"  {text}")
    return (f"+ {found[1]}.sampler.set_epoch({epoch})", f"  {text}")


def out_of_place(line: Site | None) -> tuple[str, ...]:
    """Return the change of a statement that writes in place, such as "batch -= mean"."""
    text = line.text if line else ""
    found = re.match(r"(\w+) (\*\*|[-+*/])= (.+)$", text)
    if found is None:
        words = "+ # do not write in place: batch = batch - mean; or copy the slice first: .clone()"
        return (words, *((f"  {text}",) if text else ()))
    name, sign, value = found.groups()
    value = value if re.fullmatch(r"[\w.]+(\([^()]*\))?", value) else f"({value})"
    return (f"- {text}", f"+ {name} = {name} {sign} {value}")
