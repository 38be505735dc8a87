"""Distances of two tensors that are equal, as those of a teacher's probabilities from themselves.

How far both are apart is computed as a tensor, which is read at the end of a program.
"""

from __future__ import annotations

import torch

from halfstep.doctor.internals import is_functorch_tensor

DISTANCES = frozenset(
    {
        *("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub", "__sub__"),
        *("KLDivLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"),
    }
)
"""The functions and classes of losses, and the operators, that compare two tensors."""
_ELEMENTS = 1 << 16


def are_comparable(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are of a kind, and not too large to be compared in the loop."""
    return (
        one.shape == other.shape
        and one.device == other.device
        and 1 < one.numel() <= _ELEMENTS
        and all(
            type(each) is torch.Tensor
            and each.layout is torch.strided
            and each.is_floating_point()
            and not (each.is_meta or is_functorch_tensor(each))
            for each in (one, other)
        )
    )


def distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return how far two tensors are apart, and how far the elements of the second one are.

    The first one may be the logarithm of the other, as a divergence needs it.
    """
    one, other = one.detach().double(), other.detach().double()
    apart = torch.minimum((one - other).abs().amax(), (one.exp() - other).abs().amax())
    return torch.stack([apart, other.amax() - other.amin()])
