"""A large matrix product in half precision has a dimension that is not a multiple of 8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.sites import place
from halfstep.doctor.verdict import POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

MULTIPLE = 8
# For smaller dimensions, padding costs about as much as it gains.
LEAST = 1024
SHARE = 0.25


def judge(evidence: Evidence) -> Finding | None:
    """Find a frequent matrix product with a large dimension that is not a multiple of 8."""
    for product in evidence.precision.products:
        rows, inner, columns = product.dims
        odd = [each for each in (inner, columns) if each >= LEAST and each % MULTIPLE]
        if product.share < SHARE or not odd:
            continue
        padded = -(-odd[0] // MULTIPLE) * MULTIPLE
        return Finding(
            summary=f"matrix products of {rows} x {inner} by {inner} x {columns} account "
            f"for {product.share:.0%} of the multiplications in half precision: tensor cores are "
            f"slower if a dimension is not a multiple of {MULTIPLE} (here {odd[0]})",
            facts=(f"the first product is {place(product.module, product.site)}",),
            change=(f"- {odd[0]}", f"+ {padded}  # padding: no label uses the added entries"),
            confidence=POSSIBLE,
            site=product.site,
            module=product.module,
        )
    return None


RULE = Rule(
    code="DIMENSIONS_NOT_ALIGNED",
    name="dimensions that slow down tensor cores",
    rows=(55,),
    citations=("tensorflow/models#7407", "allenai/allennlp#4929"),
    needs=frozenset({"precision"}),
    judge=judge,
    harmless=True,
)
