"""Passes over data loaders and the samples that they draw, as the ledger of passes holds them."""

from __future__ import annotations

from typing import ClassVar

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LoaderPasses:
    """The passes of a training that one line begins, over data sets of one length.

    Attributes:
        passes: Number of passes.
        samples: Length of the data set; None if it has none.
        batches: Largest length of a loader, in batches; 0 if it has none.
        taken: The number of batches that each of the first 64 passes has given.
        drawn: Number of different samples that all passes of the program over this data set have
            drawn.
        draws: Number of samples that these passes have drawn, with repetitions.
        same: Number of passes that drew the same samples in the same order as the first one.
        ordered: Whether each pass drew rising indices.
        sampler: Class of the sampler.
        draws_order: Whether this sampler draws a random order: one of torch's does, or it is told
            the number of an epoch.
        has_epoch: Whether it is told this number by `set_epoch`.
        weights: Number of weights of a WeightedRandomSampler; 0 for another one.
        zeros: Number of these weights that are 0.
        generator: Whether the sampler draws from a generator of its own.
        loaders: Number of different loaders.
        after_end: How often the line's iterators were asked for a batch although they were at
            their end, once for each pass over them too many.
        made: The line that makes the loader.
        made_by: The statement of this line.
        site: The line.
    """

    passes: int
    samples: int | None
    batches: int
    taken: tuple[int, ...]
    drawn: int
    draws: int
    same: int
    ordered: bool
    sampler: str
    draws_order: bool
    has_epoch: bool
    weights: int
    zeros: int
    generator: bool
    loaders: int
    after_end: int
    made: Site | None
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class EmptyLoader:
    """A loader over some samples whose passes have all ended without a batch.

    Attributes:
        samples: Length of its sampler, or of its data set.
        size: Size of its batches; 0 if a batch sampler makes them.
        passes: Number of its passes.
        made: The line that makes the loader.
        made_by: The statement of this line.
        site: The line that goes over it.
    """

    samples: int
    size: int
    passes: int
    made: Site | None
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class UnmatchedPasses:
    """Passes of an evaluation, each beside a pass in another order that calls no model.

    Attributes:
        count: Number of such pairs of passes.
        evaluated: The line that goes over the loader and calls a model.
        made: The line that makes the loader.
        made_by: The statement of this line.
        site: The line that goes over the same loader without calling a model.
    """

    count: int
    evaluated: Site | None
    made: Site | None
    made_by: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class Overlap:
    """An evaluation on samples of the training.

    Attributes:
        evaluated: Number of samples of the evaluation.
        trained: Number of samples of the training.
        both: Number of samples in both.
        site: The line of the evaluation.
    """

    evaluated: int
    trained: int
    both: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class PassLedger:
    """All such passes."""

    signal: ClassVar[str] = "passes"
    lines: tuple[LoaderPasses, ...] = ()
    empty: tuple[EmptyLoader, ...] = ()
    unmatched: tuple[UnmatchedPasses, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
