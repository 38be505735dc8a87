"""The targets of a loss belong to other samples than the inputs of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence, Reordered
from halfstep.doctor.signals.data.batches import BatchLedger, CrossedBatches
from halfstep.doctor.signals.data.indexing import RowLedger, TwoOrders
from halfstep.doctor.signals.data.pairs import PairLedger
from halfstep.doctor.signals.data.shuffles import ShuffledApart, Shuffles
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # batches
_ALIKE = 0.5  # of the rows


def judge(evidence: Evidence) -> Finding | None:
    """Find samples that get the targets of any sample each time that they are used."""
    for batch in evidence.of(BatchLedger).crossed:
        if batch.crossed >= _FEWEST and 2 * batch.crossed > batch.calls:
            return _of_batches(batch)
    for pair in evidence.of(Shuffles).found:
        return _of_shuffles(pair)
    for order in evidence.of(RowLedger).orders:
        if not 0 < order.batches < _FEWEST and order.alike <= _ALIKE:
            return _of_orders(order)
    for each in evidence.of(PairLedger).lines:
        return Finding(
            summary=f"the same inputs have other targets each time: for {each.samples} samples "
            f"that were used several times, {each.alike:.0%} of their targets are the same, and "
            f"{each.chance:.0%} of those of any two samples",
            facts=(
                f"{each.pairs} pairs of uses of one sample were compared",
                "inputs and targets are drawn in two orders, or one of them is shuffled alone",
            ),
            change=(
                (
                    "+ # index inputs and targets with the same permutation, or put both into one "
                    "data set: TensorDataset(inputs, targets)"
                ),
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    for found in evidence.of(Influence).reordered:
        return _of_predictions(found)
    return None


def _of_predictions(found: Reordered) -> Finding:
    return Finding(
        summary=f"the model puts the {found.count} samples of a batch into another order, and the "
        "targets stay in theirs: the loss compares predictions with targets of other samples",
        facts=(
            f"only the prediction in row {found.row} depends on the input of sample {found.sample}",
            *((f"the loss: {found.site.text}",) if found.site else ()),
        ),
        change=(
            "+ # put the results back, such as outputs[order.argsort()], before the loss",
            *((f"  {found.at.site.text}",) if found.at.site else ()),
        ),
        confidence=LIKELY,
        site=found.at.site or found.site,
    )


def _of_orders(order: TwoOrders) -> Finding:
    return Finding(
        summary="inputs and targets are taken with different indices: in "
        f"{f'{order.batches} batches' if order.batches else 'a data set of them'}, "
        f"{order.alike:.0%} of the rows have the target of their own sample",
        facts=(
            f"both are taken from tensors of {order.rows} rows",
            *((f"inputs: {order.inputs.text}",) if order.inputs else ()),
        ),
        change=(
            "+ # take inputs and targets with the same permutation",
            *((f"  {order.site.text}",) if order.site else ()),
        ),
        confidence=CERTAIN if order.batches else LIKELY,
        site=order.site,
    )


def _of_shuffles(pair: ShuffledApart) -> Finding:
    return Finding(
        summary=f"{pair.length} samples and their {pair.length} labels are shuffled one after the "
        f"other: each call of {pair.function}() draws an order of its own",
        facts=(f"the other one: {pair.other.text}" if pair.other else "no seed was set between",),
        change=(
            "+ # shuffle both with one order: order = np.random.permutation(len(labels))",
            *((f"  {pair.site.text}",) if pair.site else ()),
        ),
        confidence=LIKELY,
        site=pair.site,
    )


def _of_batches(batch: CrossedBatches) -> Finding:
    if batch.collate:
        return Finding(
            summary=f"{batch.collate}() gives the rows of inputs and targets in different orders: "
            f"they do not belong together in {batch.crossed} of {batch.calls} calls of the loss",
            facts=("the rows were compared with the samples that it was given",),
            change=(
                "+ # sort or permute the samples in the collate function, not a part of each:",
                "+ samples = sorted(samples, key=lambda each: len(each[0]), reverse=True)",
            ),
            confidence=LIKELY,
            site=batch.site,
        )
    return Finding(
        summary=f"in {batch.crossed} of {batch.calls} calls of the loss, the targets are from "
        "another batch of the loader than the inputs",
        facts=("each batch of a loader has the targets of its own samples",),
        change=(
            "+ # use inputs and targets of one batch: inputs, targets = batch",
            *((f"  {batch.site.text}",) if batch.site else ()),
        ),
        site=batch.site,
    )


RULE = Rule(
    code="TARGETS_OF_OTHER_SAMPLES",
    name="targets that belong to other samples",
    rows=(60,),
    citations=("xudonmao/VMT#1",),
    needs=frozenset({"batches", "indexing", "influence", "pairs", "shuffles"}),
    judge=judge,
    harmless=True,
)
