"""The random numbers of kernels: Philox4x32 with 10 rounds, in plain PyTorch on any device.

The generator has no state but its counters, so a kernel draws the same numbers in any order.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD = 0xFFFFFFFF


def philox(counters: Sequence[torch.Tensor | int], seed: int) -> tuple[torch.Tensor, ...]:
    """Return four random words of 32 bits for each counter, as int64.

    Args:
        counters: The four words of the counters, as int64 tensors of one shape or numbers; at
            least one is a tensor. Only their lowest 32 bits matter.
        seed: Key of the generator, 64 bits.
    """
    like = next(each for each in counters if isinstance(each, torch.Tensor))
    zero = torch.zeros_like(like)
    c0, c1, c2, c3 = ((zero + each) & _WORD for each in counters)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ k0, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3
