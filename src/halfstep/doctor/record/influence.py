"""What the loss of the last step depends on, as its replay with other inputs found it.

A part of the record of evidence.
"""

from __future__ import annotations

from typing import ClassVar

from halfstep.doctor.record.answers import (
    ByPlace,  # noqa: TC001  # pydantic reads it at run time
    Copied,  # noqa: TC001  # pydantic reads it at run time
    Drowned,  # noqa: TC001  # pydantic reads it at run time
    NoOffsets,  # noqa: TC001  # pydantic reads it at run time
    Place,  # noqa: TC001  # pydantic reads it at run time
    SharedRows,  # noqa: TC001  # pydantic reads it at run time
    SmallerEntropy,  # noqa: TC001  # pydantic reads it at run time
    Turned,  # noqa: TC001  # pydantic reads it at run time
    WeakNoise,  # noqa: TC001  # pydantic reads it at run time
    WrongDerivative,  # noqa: TC001  # pydantic reads it at run time
    WrongEdges,  # noqa: TC001  # pydantic reads it at run time
)
from halfstep.doctor.record.called import Call  # noqa: TC001  # as Site
from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Mixing:
    """A loss in which the output for one sample depends on other samples.

    Attributes:
        samples: Number of samples in the batch.
        changed: The sample whose inputs were replaced.
        others: The other samples whose outputs changed.
        own: Whether its own output changed.
        how: "sequence" for a layer that takes the samples for positions, "reshape" for a view that
            cuts samples apart.
        given: Shape of the input of the layer, or of the view.
        at: The operator.
    """

    samples: int
    changed: int
    others: tuple[int, ...]
    own: bool
    how: str
    given: tuple[int, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Shift:
    """A loss whose targets are the tokens of an input, shifted.

    Attributes:
        length: Number of positions.
        shift: How many positions after an output its target is in the input.
        start: The position from which on the input was changed.
        early: How many outputs before this position changed.
        reach: The last input that an output depends on, in positions after it; None if no output
            changed.
        context: Whether these outputs depend on tokens before this position; measured for targets
            that are not later than the input.
        at: Where the change first reached earlier positions; None if it did not, or if the place is
            unknown, or if a summary of the whole sequence carries it.
        site: The line of the loss.
    """

    length: int
    shift: int
    start: int
    early: int
    reach: int | None
    context: bool
    at: Place | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class WrongSoftmax:
    """A softmax whose results go into a loss, and do not sum to 1 over the classes.

    Attributes:
        dim: Its dimension.
        classes: The dimension of the classes.
        loss: The operator of the loss.
        at: The operator.
    """

    dim: int
    classes: int
    loss: str
    at: Place


@dataclass(frozen=True, slots=True)
class LostTerm:
    """A term of a loss that depends on parameters, and gives them no gradient.

    Attributes:
        how: The operator whose result has no gradients, "no_grad", or "number" for a Python number.
        value: Its value.
        at: Where the gradients are lost.
    """

    how: str
    value: float
    at: Place


@dataclass(frozen=True, slots=True)
class Padding:
    """Targets at the padded ends of sequences that count in a loss.

    Attributes:
        token: The token that fills up the input.
        target: The target at these positions.
        share: Their share of the targets that count.
        declared: How the program itself marks it: "padding_idx", "mask" or "pad_sequence".
        is_of_classes: Whether torch's loss of classes gets the targets.
        site: The line of the loss.
    """

    token: int
    target: float
    share: float
    declared: str
    is_of_classes: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class InvertedMask:
    """A mask of attention that hides the tokens, and not the padding.

    Attributes:
        token: The token that fills up the input.
        share: Share of tokens in the input.
        at: The operator that applies the mask.
    """

    token: int
    share: float
    at: Place


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A target of temporal difference learning that passes gradients on to the trained network.

    Attributes:
        discount: The factor of the value of the next state.
        at: The sum of the reward and this value.
    """

    discount: float
    at: Place


@dataclass(frozen=True, slots=True)
class Lost:
    """Predictions that do not depend on the input.

    Attributes:
        how: "softmax" over one element, "norm" over one element, "saturated", "unused" if the
            operator takes a part that is the same for every input, or "zeros" if it takes only
            zeros of some samples.
        at: The operator at which the input is lost.
        samples: Number of the samples that lose their input; 0 for all.
        count: Number of all samples.
    """

    how: str
    at: Place
    samples: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """Targets of a regression beyond the range of the operator that makes its predictions.

    Attributes:
        op: The operator.
        low: The smallest value that it gives.
        high: The largest value that it gives.
        smallest: The smallest target.
        largest: The largest target.
        share: The share of the targets that are beyond.
        at: The operator's place.
        is_scaled: Whether constants scale or shift its result, and `low` and `high` with it.
    """

    op: str
    low: float
    high: float
    smallest: float
    largest: float
    share: float
    at: Place
    is_scaled: bool = False


@dataclass(frozen=True, slots=True)
class CutChain:
    """An autograd function of the program whose backward ignores the gradients that it is given.

    Attributes:
        name: Its class.
        calls: How often the step calls it.
        elements: Number of elements of the gradients that one call returns.
        change: Its return statement with the gradient multiplied; "" if it is not known.
        site: The line of its return statement.
    """

    name: str
    calls: int
    elements: int
    change: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class VisibleTargets:
    """A loss whose targets are the visible tokens of an input, and never the masked ones.

    Attributes:
        token: The token that the program has written over others.
        masked: How many of the input's tokens are this one.
        counted: Number of targets that count.
        site: The line of the loss.
    """

    token: int
    masked: int
    counted: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class LostWrites:
    """A sum by index that loses terms, because the index repeats.

    Attributes:
        op: The operator that writes.
        written: Number of elements that it writes.
        places: Number of different places among them.
        lost: The mean size of what is lost, over the places that lose terms.
        size: The mean size of a term.
        needed: Whether the terms require gradients.
        is_of_rows: Whether they are rows that `index_add` adds.
        replaces: Whether the values replace the old elements, and are no terms of sums.
        at: Where it is written.
    """

    op: str
    written: int
    places: int
    lost: float
    size: float
    needed: bool
    is_of_rows: bool
    replaces: bool
    at: Place


@dataclass(frozen=True, slots=True)
class MaskedSelection:
    """A minimum, a maximum or a topk that only finds what a mask has written.

    Attributes:
        op: The operator.
        value: What it finds.
        rows: In how many rows, which are all rows with other values.
        is_lowest: Whether it selects the lowest values.
        mask: Where the mask is applied.
        at: The operator's place.
    """

    op: str
    value: float
    rows: int
    is_lowest: bool
    mask: Place
    at: Place


@dataclass(frozen=True, slots=True)
class DetachedState:
    """A recurrence over a sequence whose state is detached between every two steps.

    Attributes:
        steps: Number of steps.
        ends: Number of these that reach a loss: the last one, or several with their own targets.
        at: The operator that detaches the state before the last one.
    """

    steps: int
    ends: int
    at: Place


@dataclass(frozen=True, slots=True)
class Reordered:
    """Predictions in another order than the targets of a loss.

    Attributes:
        count: Number of samples.
        sample: A sample.
        row: The row in which its prediction is.
        at: The operator that puts samples into another order.
        site: The line of the loss.
    """

    count: int
    sample: int
    row: int
    at: Place
    site: Site | None


@dataclass(frozen=True, slots=True)
class Influence:
    """What the loss of the last step depends on.

    Attributes:
        mixing: Samples that are mixed; None if they are not, or if this is not known.
        shifts: The losses whose targets are shifted inputs.
        softmaxes: Softmaxes over other dimensions than that of the classes.
        terms: Terms without gradients.
        padding: Padding that counts; None for none.
        masks: Masks that are inverted.
        bootstraps: Targets that pass gradients on to the trained network.
        lost: Where the input is lost; None if it is not.
        reaches: The regressions with targets beyond the range of the predictions.
        chains: Autograd functions whose backward ignores the gradients that it is given.
        derivatives: Autograd functions whose backward is not the derivative of their forward.
        writes: Sums by index that lose terms.
        selections: Selections that only find what a mask has written.
        states: The recurrences whose state is detached between every two steps.
        visible: The losses of masked tokens that count the visible ones.
        reordered: Predictions in another order than the targets.
        inner: The losses inside of models that get probabilities, or arguments that broadcast.
        places: Rows of a table that are joined to samples by their places in the batch.
        drowned: The sums of means and noise through which alone the predictions see the input.
        turned: Losses whose targets are mirrored or turned apart from their inputs.
        offsets: Batches of graphs whose edges were joined without an offset.
        edges: Weights of edges that are normalised over the wrong edges.
        entropies: The entropies of policies that the loss makes smaller.
        tables: Tables whose rows the categories of several fields share.
        noise: How much noise there is in the inputs, where the noise is to be predicted.
        copied: The regressions whose targets are among the inputs at the same places.
        note: The reason why this is not known; "" if it is.
    """

    signal: ClassVar[str] = "influence"
    mixing: Mixing | None = None
    shifts: tuple[Shift, ...] = ()
    softmaxes: tuple[WrongSoftmax, ...] = ()
    terms: tuple[LostTerm, ...] = ()
    padding: Padding | None = None
    masks: tuple[InvertedMask, ...] = ()
    bootstraps: tuple[Bootstrap, ...] = ()
    lost: Lost | None = None
    reaches: tuple[OutOfReach, ...] = ()
    chains: tuple[CutChain, ...] = ()
    derivatives: tuple[WrongDerivative, ...] = ()
    writes: tuple[LostWrites, ...] = ()
    selections: tuple[MaskedSelection, ...] = ()
    visible: tuple[VisibleTargets, ...] = ()
    states: tuple[DetachedState, ...] = ()
    reordered: tuple[Reordered, ...] = ()
    inner: tuple[Call, ...] = ()
    places: tuple[ByPlace, ...] = ()
    drowned: tuple[Drowned, ...] = ()
    turned: tuple[Turned, ...] = ()
    offsets: tuple[NoOffsets, ...] = ()
    edges: tuple[WrongEdges, ...] = ()
    entropies: tuple[SmallerEntropy, ...] = ()
    tables: tuple[SharedRows, ...] = ()
    noise: tuple[WeakNoise, ...] = ()
    copied: tuple[Copied, ...] = ()
    note: str = ""
