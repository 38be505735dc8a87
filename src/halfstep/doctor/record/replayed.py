"""Results of replays: births of inf and NaN, other ways to run a step, and bad inputs.

A part of the record of evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.doctor.record.sites import Site, place
from halfstep.formats import FORMATS

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
APART = 0.1
WORTH = 1e-4
HALVES = frozenset({"fp16", "bf16"})
_VALUES = {"inf": "inf", "nan": "NaN"}
# These make 0 of an infinity that would be a large finite number in fp32.
_DIVIDES = frozenset({"aten.div", "aten.reciprocal", "aten.rsqrt", "aten.pow"})


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """The contents of a tensor, in a few numbers.

    Attributes:
        format: "fp16", "fp32", "int64", ...
        shape: Its shape.
        largest: Largest finite magnitude; None without finite elements.
        smallest: Smallest finite magnitude that is not zero; None without one.
        zeros: Elements that are exactly zero.
        infs: Infinite elements.
        nans: NaN elements.
        lowest: Smallest finite value.
        name: Name of a parameter, a buffer or a batch; "" for intermediate tensors.
        negative_infs: Elements that are -inf.
    """

    format: str
    shape: tuple[int, ...]
    largest: float | None
    smallest: float | None
    zeros: int
    infs: int
    nans: int
    lowest: float | None
    name: str = ""
    negative_infs: int = 0

    @property
    def is_mask(self) -> bool:
        """Whether it contains -inf, and its finite values are zero or of one magnitude."""
        flat = not self.largest or self.smallest == self.largest
        return flat and self.nans == 0 and self.infs == self.negative_infs > 0


@dataclass(frozen=True, slots=True)
class Maker:
    """An operator upstream of a birth.

    Attributes:
        op: The ATen operator.
        format: Format of its output.
        scalars: Python numbers among its arguments.
        distance: 1 for the operator that made the input, 2 for those that made its inputs, ...
        input: Index of the birth's input that it led to.
        site: The line that called it.
        rounded: Numbers among its arguments that were half tensors, with their rounded values.
    """

    op: str
    format: str
    scalars: tuple[float, ...]
    distance: int
    input: int
    site: Site | None
    rounded: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Birth:
    """An operator that made inf or NaN of finite inputs.

    Attributes:
        op: The ATen operator, without its overload ("aten.log"); "" for a tensor that was not
            finite when it was given.
        phase: "forward", "backward" or "given".
        kind: "inf" or "nan".
        culprit: Whether it made the loss or the gradients non-finite.
        module: Path of the module that called it; "" outside of one.
        module_kind: That module's class.
        forward_op: In a backward, the forward operator of its node.
        node: In a backward, the autograd node.
        inputs: Its inputs.
        output: Its output.
        scalars: Python numbers among its arguments.
        exact: The largest magnitude of the output in float64 on the same inputs; None if that is
            not finite either.
        dead_rows: Number of rows (last dimension) of the first input with only -inf.
        consumers: The operators that used the output, nearest first.
        producers: The operators that made the inputs, nearest first.
        lineage: These operators and those further upstream, nearest first.
        on_purpose: Whether an input had infinities that the program wrote on purpose.
        swallowed: Operators of the forward that made its output finite again.
        iteration: The step that was replayed; -1 if unknown.
        is_last: Whether this is the last step, which is examined although it is finite.
        only_on_cpu: Whether autocast would have cast the operator on CUDA, and did not on this CPU.
        site: The line that called it, possibly in a library.
        user_site: The user's line that led there.
        phase_step: What was replayed: "training" or "evaluation".
        function: The program's own autograd function that called it; "" for none.
    """

    op: str
    phase: str
    kind: str
    culprit: bool
    module: str
    module_kind: str
    forward_op: str
    node: str
    inputs: tuple[TensorSummary, ...]
    output: TensorSummary
    scalars: tuple[float, ...]
    exact: float | None
    dead_rows: int
    consumers: tuple[str, ...]
    producers: tuple[str, ...]
    site: Site | None
    user_site: Site | None
    phase_step: str = "training"
    function: str = ""
    lineage: tuple[Maker, ...] = ()
    on_purpose: bool = False
    swallowed: tuple[str, ...] = ()
    iteration: int = -1
    is_last: bool = False
    only_on_cpu: bool = False

    @property
    def overflowed(self) -> bool:
        """Whether the output is finite in float64 but beyond the maximum of its format."""
        form = FORMATS.get(self.output.format)
        return form is not None and self.exact is not None and self.exact > form.max

    @property
    def feeds_softmax(self) -> bool:
        """Whether its output goes into a softmax before a product, like attention logits."""
        for each in self.consumers:
            if "softmax" in each and "log_softmax" not in each:
                return True
            if each in PRODUCTS:
                return False
        return False

    @property
    def is_variance(self) -> bool:
        """Whether a subtraction follows the mean of this square, before a root: a variance."""
        for number, each in enumerate(self.consumers):
            if "sqrt" in each:
                return False
            if each == "aten.sub":
                return any("mean" in before for before in self.consumers[:number])
        return False

    @property
    def is_divided(self) -> bool:
        """Whether it is an overflow that a division turned into 0."""
        return self.overflowed and bool(_DIVIDES & {*self.swallowed})

    @property
    def operator(self) -> str:
        """The operator as text: "exp", or "cast" for a change of format."""
        return "cast" if self.op == "aten._to_copy" else self.op.removeprefix("aten.")

    @property
    def where(self) -> str:
        """The module and the line, as text."""
        return place(self.module, self.site)

    @property
    def value(self) -> str:
        """The value that it made, as text: "inf", "-inf" or "NaN"."""
        negative = self.kind == "inf" and 0 < self.output.infs == self.output.negative_infs
        return f"{'-' if negative else ''}{_VALUES[self.kind]}"

    @property
    def appears(self) -> str:
        """The value that it made, the place and the step, as text."""
        known = self.iteration >= 0 and self.phase_step == "training"
        step = "the last step, step" if self.is_last else "step"
        when = f" in {step} {self.iteration}" if known else ""
        return f"{self.value} appears {self.where}{when}"

    def upstream(self, *ops: str) -> list[Maker]:
        """Return the upstream operators whose names start with one of these."""
        return [each for each in self.lineage if each.op.startswith(ops)]


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of a step.

    Attributes:
        name: "plain", "eager", "fp32", "tf32 off", "lower scale", "smaller loss" (of a step without
            a loss scale), "first size" (every parameter scaled to its norm before the first step),
            or "traced" (only if tracing failed).
        iteration: The step that it repeats.
        why: The reason for the replay.
        finite: Whether loss and gradients are finite.
        loss: The loss, unscaled; None if there was none.
        largest_gradient: Largest magnitude of its gradients, unscaled; None if not finite.
        same: Whether its loss equals the step's own bit for bit; None if unknown.
        scale: The loss scale that it ran with; 1 without a scaler.
        note: Why it could not be run; "" if it could.
    """

    name: str
    iteration: int
    why: str
    finite: bool
    loss: float | None
    largest_gradient: float | None
    same: bool | None
    scale: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class GradientAgreement:
    """The difference of a parameter's gradient from that of the same step in fp32.

    Attributes:
        parameter: Its name.
        cosine: Cosine between the two; None if either is zero.
        flushed: Share of elements that are zero, but not in fp32.
        lost: L2 norm in fp32 of these elements.
        norm: L2 norm in the program's formats.
        exact_norm: L2 norm in fp32.
    """

    parameter: str
    cosine: float | None
    flushed: float
    lost: float
    norm: float
    exact_norm: float


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one size that a step computes in a half format.

    Attributes:
        dims: Rows, inner dimension, and columns.
        module: Path of the module that computes the first of them; "" outside of one.
        share: Their share of the multiplications of all half products of the forward.
        site: The user's line that led there.
    """

    dims: tuple[int, int, int]
    module: str
    share: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class Precision:
    """A finite step compared with the same step in fp32.

    Attributes:
        iteration: The step.
        loss: Its loss.
        exact_loss: Its loss in fp32.
        agreements: One per parameter.
        bits_to_overflow: Binary orders of magnitude between the largest half value and the
            maximum of its format; None without half operators.
        largest_module: The module with this value.
        detached: Parameters that were cast to a half format outside autograd.
        products: Its products in half precision, the largest first.
        note: Why there is no comparison.
    """

    iteration: int = -1
    loss: float | None = None
    exact_loss: float | None = None
    agreements: tuple[GradientAgreement, ...] = ()
    bits_to_overflow: float | None = None
    largest_module: str = ""
    detached: tuple[str, ...] = ()
    products: tuple[Product, ...] = ()
    note: str = ""

    @property
    def disagrees(self) -> bool:
        """Whether loss or gradients differ from fp32 by far more than rounding."""
        if self.loss is None or self.exact_loss is None:
            return False
        return self.is_apart(APART) or any(
            (each.cosine is not None and each.cosine < 1 - APART)
            or (each.norm == 0 and each.exact_norm > 0)
            for each in self.agreements
        )

    def is_apart(self, share: float) -> bool:
        """Return whether the loss differs from fp32's by more than this share."""
        if self.loss is None or self.exact_loss is None:
            return False
        return abs(self.loss - self.exact_loss) > share * abs(self.exact_loss)

    def underflowing(self, least: float) -> list[GradientAgreement]:
        """Return the gradients that lose a share of their elements to underflow.

        Some gradients are zero except for rounding errors, for example those of a bias before a
        norm or of a class that never occurs. They are left out: they are far smaller than the other
        gradients of their module.

        Args:
            least: The share of a gradient's elements.
        """
        largest: dict[str, float] = {}
        for each in self.agreements:
            module = each.parameter.rpartition(".")[0]
            largest[module] = max(each.exact_norm, largest.get(module, 0.0))
        return [
            each
            for each in self.agreements
            if each.flushed >= least
            and each.lost >= WORTH * largest[each.parameter.rpartition(".")[0]]
        ]


@dataclass(frozen=True, slots=True)
class Bad:
    """A batch, label, number or parameter that was not finite before any operator ran.

    Attributes:
        what: "batch", "number" (a single one), "parameter" or "buffer".
        name: Name of the parameter, the buffer, or the batch's argument.
        kind: "inf" or "nan".
        index: Index of the first such element.
        count: Number of such elements.
        iteration: The iteration in which it was seen.
        makers: The loop's calls outside of a graph that made it, the latest first; none for data.
    """

    what: str
    name: str
    kind: str
    index: tuple[int, ...]
    count: int
    iteration: int
    makers: tuple[Maker, ...] = ()

    @property
    def value(self) -> str:
        """The value, as text: "inf" or "NaN"."""
        return _VALUES[self.kind]


@dataclass(frozen=True, slots=True)
class TargetRange:
    """The targets of a loss that needs probabilities.

    Attributes:
        loss: The function's name in torch, or the module's class.
        lowest: The lowest target.
        highest: The highest target.
        site: The line that called it.
    """

    loss: str
    lowest: float
    highest: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class BadGradients:
    """The contents of the gradients in the first bad step.

    Attributes:
        iteration: The step; -1 if there was none, or if its gradients had been freed.
        elements: Number of elements.
        nans: Number of NaN elements.
        infs: Number of infinite elements.
        zeros: Number of elements that are exactly zero.
    """

    iteration: int = -1
    elements: int = 0
    nans: int = 0
    infs: int = 0
    zeros: int = 0
