"""What a replay tells: births of inf and NaN, the outcomes of other ways to run a step, inputs.

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
# What makes 0 of an infinity that in truth is a large number.
_DIVIDES = frozenset({"aten.div", "aten.reciprocal", "aten.rsqrt", "aten.pow"})


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """What is in a tensor.

    Attributes:
        format: "fp16", "fp32", "int64", ...
        shape: Its shape.
        largest: Largest finite magnitude; None without finite elements.
        smallest: Smallest finite magnitude that is not zero; None without one.
        zeros: Elements that are exactly zero.
        infs: Infinite elements.
        nans: NaN elements.
        lowest: Smallest finite value.
        name: What it is called: a parameter, a buffer, a batch; "" for what is between.
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
        """Whether its finite values are zero or of one magnitude, and there are -inf beside."""
        flat = not self.largest or self.smallest == self.largest
        return flat and self.nans == 0 and self.infs == self.negative_infs > 0


@dataclass(frozen=True, slots=True)
class Maker:
    """An operator that an input of a birth came from.

    Attributes:
        op: The ATen operator.
        format: Format of what it made.
        scalars: Python numbers among its arguments.
        distance: 1 for the one that made the input, 2 for those that made its inputs, ...
        input: Which input of the birth it led to.
        site: The line that called it.
        rounded: Numbers among its arguments that were written as half tensors, as they are in
            that format.
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
    """An operator that made inf or NaN out of what had none.

    Attributes:
        op: The ATen operator, without its overload ("aten.log"); "" for a tensor that was not
            finite when it was given.
        phase: "forward", "backward" or "given".
        kind: "inf" or "nan".
        culprit: Whether it is what made the loss or the gradients non-finite.
        module: Path of the module that called it; "" outside of one.
        module_kind: That module's class.
        forward_op: In a backward, the operator of the forward that it belongs to.
        node: In a backward, the autograd node.
        inputs: What went in.
        output: What came out.
        scalars: Python numbers among its arguments.
        exact: The largest magnitude of the same operator in float64 on the same inputs; None where
            that is not finite either.
        dead_rows: Rows (last dimension) of the first input that hold nothing but -inf.
        consumers: The operators that the output went into next.
        producers: The operators that made the inputs, nearest first.
        lineage: Those operators, and those that made their inputs, nearest first.
        on_purpose: Whether infinities that were written on purpose went in.
        swallowed: Operators of the forward that made finite numbers of what it gave.
        site: The line that called it, be it in a library.
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

    @property
    def overflowed(self) -> bool:
        """Whether it is a number in float64 that its format has no room for."""
        form = FORMATS.get(self.output.format)
        return form is not None and self.exact is not None and self.exact > form.max

    @property
    def feeds_softmax(self) -> bool:
        """Whether its output goes into a softmax, as attention's logits do, before a product."""
        for each in self.consumers:
            if "softmax" in each and "log_softmax" not in each:
                return True
            if each in PRODUCTS:
                return False
        return False

    @property
    def is_variance(self) -> bool:
        """Whether it is a square whose mean something is subtracted from before a root is taken."""
        for number, each in enumerate(self.consumers):
            if "sqrt" in each:
                return False
            if each == "aten.sub":
                return any("mean" in before for before in self.consumers[:number])
        return False

    @property
    def is_divided(self) -> bool:
        """Whether an overflow ended as the 0 that division by infinity gives."""
        return self.overflowed and bool(_DIVIDES & {*self.swallowed})

    @property
    def where(self) -> str:
        """The module and the line, as text."""
        return place(self.module, self.site)

    @property
    def value(self) -> str:
        """What it made, as text: "inf", "-inf" or "NaN"."""
        negative = self.kind == "inf" and 0 < self.output.infs == self.output.negative_infs
        return f"{'-' if negative else ''}{_VALUES[self.kind]}"

    @property
    def appears(self) -> str:
        """What it made and where, as text."""
        return f"{self.value} appears {self.where}"

    def upstream(self, *ops: str) -> list[Maker]:
        """Return the makers of these operators, by the beginnings of their names."""
        return [each for each in self.lineage if each.op.startswith(ops)]


@dataclass(frozen=True, slots=True)
class Replay:
    """One run of a step again.

    Attributes:
        name: "plain", "eager", "fp32", "tf32 off", "lower scale", or "first size": every parameter
            as it is, but as small as before the first step.
        iteration: The step that it repeats.
        why: What made doctor replay it.
        finite: Whether loss and gradients were.
        loss: The loss, unscaled; None where there was none.
        largest_gradient: Largest magnitude of its gradients, unscaled; None where not finite.
        same: Whether its loss has the very bits of the step's own; None where that is unknown.
        scale: The loss scale that it ran with; 1 without a scaler.
        note: Why it could not be run; "" when it could.
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
    """How near a parameter's gradient is to the same step's in fp32.

    Attributes:
        parameter: Its name.
        cosine: Cosine between the two; None where either is zero.
        flushed: Share of elements that are zero and are not in fp32.
        lost: L2 norm in fp32 of those elements.
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
    """A healthy step beside the same step in fp32.

    Attributes:
        iteration: The step.
        loss: Its loss.
        exact_loss: Its loss in fp32.
        agreements: One a parameter.
        bits_to_overflow: Binary orders of magnitude between the largest half value and the
            largest that its format has; None without half operators.
        largest_module: The module that has it.
        detached: Parameters that were cast to a half format without a record for autograd.
        products: Its half products, the largest first.
        note: Why there is none of it.
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
        """Whether loss or gradients are not those of fp32, by far more than rounding."""
        if self.loss is None or self.exact_loss is None:
            return False
        return self.is_apart(APART) or any(
            (each.cosine is not None and each.cosine < 1 - APART)
            or (each.norm == 0 and each.exact_norm > 0)
            for each in self.agreements
        )

    def is_apart(self, share: float) -> bool:
        """Return whether the loss is further than a share of it from that of fp32."""
        if self.loss is None or self.exact_loss is None:
            return False
        return abs(self.loss - self.exact_loss) > share * abs(self.exact_loss)

    def underflowing(self, least: float) -> list[GradientAgreement]:
        """Return the gradients that half formats lose a share of, and not only of their rounding.

        What is zero but for rounding, as the gradient of a bias before a norm or of a class that
        never occurs, is smaller by far than the other gradients of its module.

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
        name: The parameter's or buffer's; the argument's for a batch.
        kind: "inf" or "nan".
        index: Place of the first such element.
        count: How many there are.
        iteration: When it was seen.
    """

    what: str
    name: str
    kind: str
    index: tuple[int, ...]
    count: int
    iteration: int

    @property
    def value(self) -> str:
        """What it is, as text: "inf" or "NaN"."""
        return _VALUES[self.kind]


@dataclass(frozen=True, slots=True)
class BadGradients:
    """What the gradients held that the first bad step was given.

    Attributes:
        iteration: The step; -1 when there was none, or its gradients were gone.
        elements: How many elements they have.
        nans: How many are NaN.
        infs: How many are infinite.
        zeros: How many are exactly zero.
    """

    iteration: int = -1
    elements: int = 0
    nans: int = 0
    infs: int = 0
    zeros: int = 0
