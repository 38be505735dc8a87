"""The program's calls, its checkpoints and the error that ends it.

A part of the record of evidence.
"""

from __future__ import annotations

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Outputs and targets with equally many elements whose shapes broadcast to a larger shape.

    Attributes:
        outputs: Shape of the argument that depends on parameters: (8, 1).
        targets: Shape of the argument that does not: (8,).
        together: The shape to which they broadcast: (8, 8).
        at: Index of the targets among the arguments.
    """

    outputs: tuple[int, ...]
    targets: tuple[int, ...]
    together: tuple[int, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """The loop's equal calls of one function of torch, model or loss module.

    Attributes:
        name: The function's name in torch ("cross_entropy"), or the module's class ("BCELoss").
        formats: Formats of the first floating-point tensors in the arguments.
        result: Format of the first floating-point result; "" without one.
        gradients: Whether gradients were enabled.
        autocast: Format of the active autocast; "" without one.
        count: Number of calls.
        site: The first line that made the call.
        rounded: Whether the first input is in fp32 but holds only values that autocast's format can
            represent, so that it was cast to fp32 after its rounding. Checked only for binary cross
            entropy on probabilities.
        classes: Number of classes, if the model's scores are probabilities: no negative numbers,
            and a sum of 1 over the classes; 0 if not. For a binary cross entropy with logits, 1 if
            the scores are the results of a sigmoid or softmax. Checked only for these, torch's
            cross entropy and negative log likelihood, in some of the first sixteen calls.
        sigmoid: Whether these are the results of a sigmoid, which need not sum to 1.
        broadcast: Outputs and targets that broadcast to a larger shape; None without them. Checked
            only for subtractions, and losses that subtract their arguments.
    """

    name: str
    formats: tuple[str, ...]
    result: str
    gradients: bool
    autocast: str
    count: int
    site: Site | None
    rounded: bool = False
    classes: int = 0
    sigmoid: bool = False
    broadcast: Broadcast | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Calls of models in evaluation mode or without gradients.

    Attributes:
        calls: Number of calls.
        bad: Number of calls whose output contained NaN.
        first_bad: The loop's iteration at the first of these calls; None without one, and for
            outputs on an accelerator.
        formats: Formats of the outputs.
    """

    calls: int = 0
    bad: int = 0
    first_bad: int | None = None
    formats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoints that one line saved.

    Attributes:
        optimizer: Whether the checkpoints contain the state of an optimizer.
        scaler: Whether the checkpoints contain the state of a gradient scaler.
        count: Number of checkpoints.
        site: The line that saved them.
    """

    optimizer: bool
    scaler: bool
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class ElsewhereCall:
    """Training calls of a model in a thread other than the loop's.

    Attributes:
        kind: The model's class.
        autocast: Format of the autocast that was active in the other thread; "" without one.
        loop_autocast: Format of the autocast that was active in the loop's thread at that time; ""
            without one.
        count: Number of calls.
        site: The first line that called the model.
    """

    kind: str
    autocast: str
    loop_autocast: str
    count: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class HalfOverflow:
    """A half-precision result that overflows outside autocast and any graph, but not in fp32.

    Attributes:
        name: The function's name in torch, or the module's class.
        format: Format of the result.
        exact: The largest magnitude of the result in fp32.
        count: Number of overflows.
        site: The line that made the call.
        of_gradients: Whether the call was given a gradient of a parameter.
        evaluation: Whether gradients were disabled.
        share: The largest quotient in fp32 of a division by it, where it was infinite.
    """

    name: str
    format: str
    exact: float
    count: int
    site: Site | None
    of_gradients: bool = False
    evaluation: bool = True
    share: float = 0.0


MESSAGE = 2000
"""The characters of an error's message that are kept."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The exception that ended the program.

    Attributes:
        kind: Class of the exception; "" if the program ended without one.
        message: Message of the exception.
        function: Name of the user-defined autograd function that raised it; "" for none.
        site: The innermost line of the user's program in the traceback.
        in_optimizer: Whether the exception passed through one of torch's optimizers.
    """

    kind: str = ""
    message: str = ""
    site: Site | None = None
    function: str = ""
    in_optimizer: bool = False
