"""Answers to questions about the last step: what is wrong, and at which operator.

A part of the record of evidence.
"""

from __future__ import annotations

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """An operator of the step.

    Attributes:
        op: Its name, without the namespace.
        module: Path of the module that calls it; "" outside of modules.
        kind: Class of this module.
        shape: Shape of its result.
        site: The user's line.
    """

    op: str
    module: str
    kind: str
    shape: tuple[int, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class WrongDerivative:
    """An autograd function of the program whose backward is not the derivative of its forward.

    Attributes:
        name: Its class.
        calls: How often the step calls it.
        how: "elements" if each element was compared, "directions" for random directions.
        likeness: The share of the elements at which the backward is off; for directions, the cosine
            between what the backward gives and how the results change.
        factor: For directions, the size of what the backward gives, relative to this change.
        site: The line of its backward.
    """

    name: str
    calls: int
    how: str
    likeness: float
    factor: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class ByPlace:
    """Rows of a table that are joined to samples by their places in the batch.

    Attributes:
        samples: Number of samples in the batch.
        dim: The dimension of the samples.
        given: Shape of the tensor to which the rows are joined.
        at: The operator that joins them.
    """

    samples: int
    dim: int
    given: tuple[int, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Drowned:
    """A sum of learned means and noise through which alone the predictions see the input.

    Attributes:
        share: The variance of the means over the samples, relative to that of the noise, at the
            code where it is largest.
        codes: Number of codes of a sample.
        elements: Number of predictions of a sample.
        loss: The operator of the loss.
        at: The sum.
    """

    share: float
    codes: int
    elements: int
    loss: str
    at: Place


@dataclass(frozen=True, slots=True)
class Turned:
    """A loss in which many predictions fit the mirrored or turned target better than their own.

    Attributes:
        how: How the targets are turned.
        count: Number of samples that fit it far better.
        samples: Number of all samples.
        measure: What says how well they fit.
        own: It, with the targets of the step.
        best: It, with the better of both targets.
        site: The line of the loss.
    """

    how: str
    count: int
    samples: int
    measure: str
    own: float
    best: float
    site: Site | None


@dataclass(frozen=True, slots=True)
class NoOffsets:
    """A batch of graphs whose edges all lie among as many nodes as one graph has.

    Attributes:
        graphs: Number of graphs.
        nodes: Number of their nodes.
        most: The largest index of a node in an edge, plus 1.
        edges: Number of edges.
        at: The operator that reads the nodes of edges.
    """

    graphs: int
    nodes: int
    most: int
    edges: int
    at: Place


@dataclass(frozen=True, slots=True)
class Copied:
    """A regression whose targets are among what the layers are given at the same places.

    Attributes:
        count: Number of targets.
        samples: Number of samples of which one input was changed.
        moved: In how many of these the prediction of the same place changed.
        at: The operator that is given the targets.
        site: The line of the loss.
    """

    count: int
    samples: int
    moved: int
    at: Place
    site: Site | None


@dataclass(frozen=True, slots=True)
class WrongEdges:
    """Weights of edges that sum to 1 over other edges than those with which messages are summed.

    Attributes:
        edges: Number of edges.
        off: Number of nodes into which the weights do not sum to about 1.
        nodes: Number of all nodes into which edges go.
        smallest: The smallest of these sums.
        largest: The largest of them.
        at: The operator that normalises.
    """

    edges: int
    off: int
    nodes: int
    smallest: float
    largest: float
    at: Place


@dataclass(frozen=True, slots=True)
class SmallerEntropy:
    """An entropy of a policy that a loss makes smaller.

    Attributes:
        slope: How fast the loss grows with the entropy.
        at: The operator that makes the entropy.
    """

    slope: float
    at: Place


@dataclass(frozen=True, slots=True)
class SharedRows:
    """A table whose rows the categories of several fields share.

    Attributes:
        rows: Number of its rows.
        sizes: For each field, the largest number of a category in the last batch, plus 1.
        at: The operator that reads it.
    """

    rows: int
    sizes: tuple[int, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class WeakNoise:
    """A loss whose targets are the noise in its inputs.

    Attributes:
        correlation: The correlation of the noise and the inputs at the last quarter of the levels.
        last: The last level of the batch.
        site: The line of the loss.
    """

    correlation: float
    last: float
    site: Site | None
