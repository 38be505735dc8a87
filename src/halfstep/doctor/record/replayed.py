"""Results of replays: births of inf and NaN, other ways to run a step, and bad inputs.

A part of the record of evidence.
"""

from __future__ import annotations

from halfstep.doctor.record.hidden_write import HiddenWrite  # noqa: TC001  # at run time
from halfstep.doctor.record.sites import Site, place
from halfstep.formats import FORMATS
from halfstep.lazy_dataclass import dataclass

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
APART = 0.1
WORTH = 1e-4
_ROUNDING = 1e-2
_VALUES = {"inf": "inf", "nan": "NaN"}
# These operators turn an infinity, which would be a large finite number in fp32, into 0.
_DIVIDES = frozenset({"aten.div", "aten.reciprocal", "aten.rsqrt", "aten.pow"})


def _operator(op: str) -> str:
    return "cast" if op == "aten._to_copy" else op.removeprefix("aten.")


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """The contents of a tensor, in a few numbers.

    Attributes:
        format: "fp16", "fp32", "int64", ...
        shape: Shape of the tensor.
        largest: Largest finite magnitude; None without finite elements.
        smallest: Smallest finite magnitude that is not zero; None without one.
        zeros: Number of elements that are exactly zero.
        infs: Number of infinite elements.
        nans: Number of NaN elements.
        lowest: Lowest finite value, with its sign; None without finite elements.
        name: "parameter head.weight", "buffer ...", "batch", "constant", "computed" (a constant
            with logarithms of 0); "" for intermediate tensors.
        negative_infs: Number of elements that are -inf.
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
        """Whether it looks like a mask: -inf, and otherwise only zeros and values of one size."""
        flat = not self.largest or self.smallest == self.largest
        return flat and self.nans == 0 and self.infs == self.negative_infs > 0


@dataclass(frozen=True, slots=True)
class Maker:
    """An operator upstream of a birth: an input of the birth was computed from its output.

    Attributes:
        op: The ATen operator.
        format: Format of its output.
        scalars: Python numbers among its arguments.
        distance: 1 for the operator that made the input, 2 for the operators that made the inputs
            of that operator, and so on.
        input: Index of this input among the inputs of the birth.
        site: The line that called the operator.
        rounded: What half precision has made of the arguments that were numbers in tensors.
        additions: Number of additions and subtractions of tensors between it and the birth, if all
            operators between them are linear, and so pass its rounding error on; None otherwise.
    """

    op: str
    format: str
    scalars: tuple[float, ...]
    distance: int
    input: int
    site: Site | None
    rounded: tuple[float, ...] = ()
    additions: int | None = None

    @property
    def operator(self) -> str:
        """The operator as text: "exp", or "cast" for a change of format."""
        return _operator(self.op)


@dataclass(frozen=True, slots=True)
class Birth:
    """An operator that made inf or NaN from finite inputs, or a non-finite tensor from outside.

    Attributes:
        op: The ATen operator, without its overload ("aten.log", also for `log_`); "" for a tensor
            from outside.
        phase: "forward" or "backward"; "given" for a tensor that came from outside the step.
        kind: "inf" or "nan".
        culprit: Whether it made the loss or the gradients non-finite.
        module: Path of the module that called it; "" outside of modules.
        module_kind: Class of this module.
        forward_op: The forward operator that created `node`; "" in a forward.
        node: Name of the autograd node whose backward called it; "" in a forward.
        inputs: Summaries of its inputs, from before it ran.
        output: Summary of its output.
        scalars: Python numbers among its arguments.
        exact: The largest magnitude of the output in float64 on the same inputs; None if that is
            not finite either.
        dead_rows: Number of rows of the first input that contain only -inf. A row is along the
            dimension of a softmax, along the dimensions in which a second input broadcasts, and
            otherwise along the last dimension.
        consumers: Names of the first operators that read the output, or a result of it.
        producers: Names of the operators that made the inputs, in the order of the inputs.
        lineage: The producers and the operators upstream of them, nearest first.
        on_purpose: Whether an input had infinities that the program wrote on purpose.
        swallowed: Names of forward operators that read the non-finite output, or a result of it,
            and gave a finite result.
        iteration: Number of the replayed step; -1 if unknown.
        is_last: Whether the step is the last step, which is examined although it is finite.
        only_on_cpu: Whether the operator ran in a half format because autocast does not cast it on
            a CPU, although autocast runs it in fp32 on CUDA.
        overload: The overload of `op` ("default", "Scalar"); "" for a tensor from outside.
        site: The line that called it, possibly in a library.
        user_site: The line of the user's program from which `site` was reached.
        phase_step: The kind of step: "training" or "evaluation".
        function: Name of the user-defined autograd function that called it; "" for none.
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
    overload: str = ""

    @property
    def overflowed(self) -> bool:
        """Whether the output is finite in float64 but beyond the maximum of its format."""
        form = FORMATS.get(self.output.format)
        return form is not None and self.exact is not None and self.exact > form.max

    @property
    def feeds_softmax(self) -> bool:
        """Whether a softmax reads its output before a matrix product does, as attention does."""
        for each in self.consumers:
            if "softmax" in each and "log_softmax" not in each:
                return True
            if each in PRODUCTS:
                return False
        return False

    @property
    def is_variance(self) -> bool:
        """Whether its output belongs to a variance: a mean, then a subtraction, before any root."""
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
        return _operator(self.op)

    @property
    def called(self) -> str:
        """The operator in a sentence: "exp()", or "a cast"."""
        return "a cast" if self.operator == "cast" else f"{self.operator}()"

    @property
    def reach(self) -> str:
        """The size of an overflow, in a sentence: "exp() has results up to 1.63e+05"."""
        verb = "gets values" if self.operator == "cast" else "has results"
        return f"{self.called} {verb} up to {self.exact:.3g}"

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
        found = "; doctor found it in the last step, step" if self.is_last else " in step"
        when = f"{found} {self.iteration}" if known else ""
        return f"{self.value} appears {self.where}{when}"

    def upstream(self, *ops: str) -> list[Maker]:
        """Return the upstream operators whose names start with one of these prefixes."""
        return [each for each in self.lineage if each.op.startswith(ops)]


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of one replay of a step.

    Attributes:
        name: "plain", "eager", "fp32", "tf32 off", "lower scale", "smaller loss" (of a step without
            a loss scale), "first size" (every parameter scaled to its norm before the first step),
            or "traced" (only if tracing failed).
        iteration: Number of the replayed step.
        why: The reason for the replay.
        finite: Whether loss and gradients are finite.
        loss: The unscaled loss; None without a backward.
        largest_gradient: Largest magnitude of the unscaled gradients; None if the replay is not
            finite.
        same: Whether the loss equals the program's loss of this step bit for bit; None if unknown.
        scale: The loss scale of the replay; 1 without one.
        note: The reason why the replay failed; "" if it did not.
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
        parameter: Name of the parameter.
        cosine: Cosine between the two gradients; None if either is zero.
        flushed: Share of the gradient's elements that are zero, but not zero in fp32.
        lost: L2 norm of these elements in fp32.
        norm: L2 norm of the gradient in the program's formats.
        exact_norm: L2 norm of the gradient in fp32.
    """

    parameter: str
    cosine: float | None
    flushed: float
    lost: float
    norm: float
    exact_norm: float


@dataclass(frozen=True, slots=True)
class Cut:
    """A place at which a step loses the gradients of parameters whose values its loss depends on.

    Attributes:
        parameters: Names of the parameters.
        how: "detach", "no_grad", or the operator whose result has no gradients, such as "argmax".
        module: Path of the module that runs there; "" outside of modules.
        site: The line.
    """

    parameters: tuple[str, ...]
    how: str
    module: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Stray:
    """A trainable parameter in a step that neither a model nor an optimizer contains.

    Attributes:
        shape: Its shape.
        module: Path of the module that uses it; "" outside of modules.
        site: The line that uses it.
    """

    shape: tuple[int, ...]
    module: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Rounded:
    """A line whose half-precision results are mostly lost to rounding.

    Attributes:
        name: Name of the buffer that the line adds to; "" for a line of a backward.
        format: The half format.
        largest: Magnitude of the largest number of the buffer, or of the exact results.
        lost: Number of elements that are lost.
        count: Number of elements that could be lost: they are not 0 in fp32.
        module: Path of the module that runs the line; "" outside of modules.
        site: The line.
    """

    name: str
    format: str
    largest: float
    lost: int
    count: int
    module: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one size that a step computes in a half format.

    Attributes:
        dims: Rows, inner dimension, and columns.
        module: Path of the module that computes the first of these products; "" outside of modules.
        share: Share of these products in the multiplications of all half-precision products of the
            forward.
        site: The line of the user's program that computes the first of these products.
    """

    dims: tuple[int, int, int]
    module: str
    share: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class Precision:
    """A finite step compared with the same step in fp32.

    Attributes:
        iteration: Number of the step; -1 without a comparison.
        loss: The unscaled loss of the step.
        exact_loss: The unscaled loss of the step in fp32.
        agreements: For each parameter, the difference of its gradient from that in fp32.
        bits_to_overflow: log2(maximum of the format / magnitude) for the half-precision value of
            the forward that is nearest to overflow; None without half operators.
        largest_module: Path of the module that made this value.
        detached: Names of parameters that were cast to a half format outside autograd.
        products: The matrix products of the forward in half precision, the largest first.
        cuts: Where it loses gradients of parameters.
        strays: The trainable parameters that neither a model nor an optimizer contains.
        absorbed: The buffers that no longer change when the step adds to them.
        vanished: The lines of a backward of the program's own whose results are mostly 0 in fp16.
        averaged: The running means of batch norms, torch's or the program's own, in a half format.
        hidden_writes: The writes that autograd does not notice, to values that the backward reads.
        note: The reason why there is no comparison; "" if there is one.
    """

    iteration: int = -1
    loss: float | None = None
    exact_loss: float | None = None
    agreements: tuple[GradientAgreement, ...] = ()
    bits_to_overflow: float | None = None
    largest_module: str = ""
    detached: tuple[str, ...] = ()
    products: tuple[Product, ...] = ()
    cuts: tuple[Cut, ...] = ()
    strays: tuple[Stray, ...] = ()
    absorbed: tuple[Rounded, ...] = ()
    vanished: tuple[Rounded, ...] = ()
    averaged: tuple[Rounded, ...] = ()
    hidden_writes: tuple[HiddenWrite, ...] = ()
    note: str = ""

    @property
    def disagrees(self) -> bool:
        """Whether loss or gradients differ from those in fp32 by far more than rounding errors."""
        if self.loss is None or self.exact_loss is None:
            return False
        return self.is_apart(APART) or any(
            (each.cosine is not None and each.cosine < 1 - APART)
            or (each.norm == 0 and each.exact_norm > 0)
            for each in self.agreements
        )

    def is_apart(self, share: float) -> bool:
        """Return whether the loss differs from the loss in fp32 by more than this share."""
        if self.loss is None or self.exact_loss is None:
            return False
        return abs(self.loss - self.exact_loss) > share * abs(self.exact_loss)

    def underflowing(self, least: float) -> list[GradientAgreement]:
        """Return the gradients that lose a share of their elements to underflow.

        Some gradients are zero except for rounding errors, for example the gradient of a bias
        before a norm. They are recognised because they are far smaller than the other gradients of
        their module, and are left out.

        Args:
            least: The smallest share of lost elements for which a gradient is returned.
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
    """An input of a step (batch, label, number, parameter) that was not finite before the step.

    Attributes:
        what: "batch", "number" (a tensor without dimensions), "parameter" or "buffer".
        name: Name of the parameter or buffer; for other inputs, "batch" or the kind of the call.
        kind: "inf" or "nan".
        index: Index of the first non-finite element.
        count: Number of non-finite elements.
        iteration: Number of the iteration that used the input.
        makers: The loop's call outside of an autograd graph that made inf or NaN from finite
            arguments, followed by the calls that made its arguments, in their order; empty if no
            recorded call did.
        is_known: Whether the source is known: the call in `makers`, or the data.
        is_culprit: Whether it made the loss or the gradients non-finite; None if unknown.
        is_hidden: Whether the loss and the gradients are finite, for example because the step
            divides by the input.
        site: The line of the loop's call that reads it; None for a parameter.
        expression: Its expression in this line, such as "images"; "" if unknown.
        is_combined: Whether this call also reads a result of an earlier call of the loop, as a loss
            reads targets beside the model's output.
        is_mask: Whether it is a mask in half precision, whose constant has become -inf.
    """

    what: str
    name: str
    kind: str
    index: tuple[int, ...]
    count: int
    iteration: int
    makers: tuple[Maker, ...] = ()
    is_known: bool = True
    is_culprit: bool | None = None
    is_hidden: bool = False
    site: Site | None = None
    expression: str = ""
    is_combined: bool = False
    is_mask: bool = False

    @property
    def is_from_loop(self) -> bool:
        """Whether it is a batch, a target or a weight that may have made the step bad."""
        return self.what in ("batch", "number") and self.is_culprit is not False

    @property
    def value(self) -> str:
        """The value, as text: "inf" or "NaN"."""
        return _VALUES[self.kind]


@dataclass(frozen=True, slots=True)
class TargetRange:
    """The range of the targets that were passed to a loss whose targets must be probabilities.

    Attributes:
        loss: The function's name in torch, or the module's class.
        lowest: The lowest target.
        highest: The highest target.
        site: The line that called the loss.
    """

    loss: str
    lowest: float
    highest: float
    site: Site | None

    @property
    def is_of_probabilities(self) -> bool:
        """Whether all targets are between 0 and 1, except for rounding errors."""
        return self.lowest >= -_ROUNDING and self.highest <= 1 + _ROUNDING
