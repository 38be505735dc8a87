"""Bits of each module, such that all of them fit a budget and the gradient has the least noise."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from halfstep.kernels.packing import BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.techniques.activations.sensitivity import Measured


def allocate(
    modules: Mapping[str, Measured],
    *,
    budget: float,
    group: int,
    fixed: tuple[int, int],
) -> dict[str, int]:
    """Give each module as many bits as lower the variance most for their bytes.

    From the fewest bits on, the module whose next number of bits lowers the variance most a byte
    gets it, as long as it fits (ActNN, section 4.2, by Lagrange's condition instead).

    Args:
        modules: What each saves.
        budget: Share of the exact bytes that may be kept.
        group: Elements that share levels, which take 4 bytes.
        fixed: Bytes of everything else: exact, and as kept.

    Returns:
        Bits of each module.

    Raises:
        ValueError: If the fewest bits everywhere are more than the budget.
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
