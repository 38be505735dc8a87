"""The program's calls, checkpoints and final exception.

A part of the record of evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time


@dataclass(frozen=True, slots=True)
class Call:
    """A function of torch, or a model or loss module, that the loop called.

    Attributes:
        name: Its name in torch ("cross_entropy"), or the module's class ("BCELoss").
        formats: Formats of the floating-point tensors that it was given.
        result: Format of its first floating-point result; "" without one.
        gradients: Whether gradients were recorded.
        autocast: Format of the autocast that it ran under; "" without.
        count: How often.
        site: The first line that called it.
        rounded: Whether all numbers of its first input, in fp32, are numbers of autocast's format:
            the input was widened too late. Checked for functions without a safe half form.
    """

    name: str
    formats: tuple[str, ...]
    result: str
    gradients: bool
    autocast: str
    count: int
    site: Site | None
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Calls of models in evaluation mode or without gradients.

    Attributes:
        calls: How many.
        bad: How many gave inf or NaN.
        first_bad: The iteration after which the first of them ran; None without one.
        formats: Formats of their outputs.
    """

    calls: int = 0
    bad: int = 0
    first_bad: int | None = None
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """Checkpoints that one line saved.

    Attributes:
        optimizer: Whether the state of an optimizer is in them.
        scaler: Whether the state of a gradient scaler is in them.
        count: Number of checkpoints.
        site: The line.
    """

    optimizer: bool
    scaler: bool
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class ElsewhereCall:
    """Calls of a model for training in another thread than the loop's.

    Attributes:
        kind: The model's class.
        autocast: Format of the autocast that it ran under; "" without.
        loop_autocast: Format of the autocast that the loop was under at that time; "" without.
        count: How many.
        site: The first line that called it.
    """

    kind: str
    autocast: str
    loop_autocast: str
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class HalfOverflow:
    """A half result of the loop in evaluation, outside autocast, that is finite only in fp32.

    Attributes:
        name: The function's name in torch, or the module's class.
        format: Format of the result.
        exact: The largest magnitude in fp32.
        count: How often.
        site: The line.
    """

    name: str
    format: str
    exact: float
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Ending:
    """The exception that ended the program.

    Attributes:
        kind: Its class; "" without an exception.
        message: Its message.
        function: The program's own autograd function that it was raised in; "" for none.
        site: The innermost line of the user's program in its traceback.
        in_optimizer: Whether one of torch's optimizers raised it.
    """

    kind: str = ""
    message: str = ""
    site: Site | None = None
    function: str = ""
    in_optimizer: bool = False
