"""Chooses the bits of each module, so that they fit a budget and the gradient has little noise."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from halfstep.mechanisms.activations.packing import BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.mechanisms.activations.sensitivity import Measured


def allocate(
    modules: Mapping[str, Measured],
    *,
    budget: float,
    group: int,
    fixed: tuple[int, int],
) -> dict[str, int]:
    """Choose the bits of each module that lower the variance of the gradient most for their memory.

    Every module starts with the fewest bits. Then the module with the largest decrease of variance
    per added byte gets the next number of bits, as long as it fits into the budget. ActNN, section
    4.2, solves the same problem with another algorithm.

    Args:
        modules: The measurement of each module's saved tensors.
        budget: The part of the exact bytes that the compressed tensors may take, from 0 to 1.
        group: Number of elements that share quantization levels; the levels take 4 bytes per group.
        fixed: Bytes of all other saved tensors: without compression, and as they are stored.

    Returns:
        The bits per element for each module.

    Raises:
        ValueError: If the fewest bits in every module exceed the budget.
    """

    def nbytes(module: str, bits: int) -> float:
        return modules[module].elements * (bits / 8 + 4 / group)

    exact = fixed[0] + sum(each.exact for each in modules.values())
    bits = dict.fromkeys(modules, BITS[0])
    left = budget * exact - fixed[1] - sum(nbytes(module, BITS[0]) for module in modules)
    if left < 0:
        least = budget - left / exact
        raise ValueError(
            f"activation_budget={budget} is less than {BITS[0]} bits per element need, "
            f"{least:.3f} of the exact bytes; write activation_budget={least + 0.005:.2f} or more, "
            "or activations=2 instead"
        )
    wanted: list[tuple[float, str, int]] = []

    def want_more(module: str) -> None:
        place = BITS.index(bits[module]) + 1
        if place < len(BITS):
            now, then = bits[module], BITS[place]
            drop = modules[module].noise * (1 / (2**now - 1) ** 2 - 1 / (2**then - 1) ** 2)
            price = nbytes(module, then) - nbytes(module, now)
            heapq.heappush(wanted, (-drop / price, module, then))

    for module in modules:
        want_more(module)
    while wanted:
        _, module, then = heapq.heappop(wanted)
        price = nbytes(module, then) - nbytes(module, bits[module])
        if price <= left:
            left -= price
            bits[module] = then
            want_more(module)
    return bits
