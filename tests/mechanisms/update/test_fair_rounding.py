"""Stochastic rounding is fair: in one tensor, in an optimizer's step, and in both of its forms.

What torchao asks of its own: only the two neighbours, the exact value on average, values that bf16
holds and special ones untouched.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from halfstep.engine import Engine
from halfstep.formats import round_to
from halfstep.kernels.rounding import round_stochastically

DRAWS = 4096
STANDARD_ERRORS = 6
"""Allowed to a mean; one of 10^8 honest ones is farther off."""


def by_bits(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return round_stochastically(value, generator).float()


def by_spacing(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return round_to(value, "bf16", rounding="stochastic", generator=generator)


FORMS = pytest.mark.parametrize("rounded", [by_bits, by_spacing])


def neighbours(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bf16 numbers on both sides, towards zero and away from it; the value itself if it is."""
    towards = (value.view(torch.int32) & -(1 << 16)).view(torch.float32)
    away = (towards.view(torch.int32) + (1 << 16)).view(torch.float32)
    return towards, torch.where(towards == value, value, away)


def assert_fair(rounded: torch.Tensor, exact: torch.Tensor) -> None:
    """Hold draws, one a row, to the neighbours of each exact value and to its mean."""
    towards, away = neighbours(exact)
    assert ((rounded == towards) | (rounded == away)).all()
    spacing = (away.double() - towards.double()).abs()
    share = ((exact.double() - towards.double()).abs() / spacing).nan_to_num()
    allowed = STANDARD_ERRORS * spacing * (share * (1 - share) / len(rounded)).sqrt()
    error = (rounded.double().mean(0) - exact.double()).abs()
    assert (error <= allowed).all()


@FORMS
def test_values_of_all_magnitudes_are_their_own_mean(rounded) -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.linspace(-120, 120, 64)
    exact = torch.randn(64, generator=generator) * torch.exp2(exponents.round())
    assert_fair(rounded(exact.expand(DRAWS, -1), generator), exact)


@FORMS
def test_below_the_smallest_number_a_value_is_its_own_mean_too(rounded) -> None:
    smallest = 2.0**-133
    exact = torch.tensor([0.25, 0.5, 0.75, 1.25, -0.25, -1.75]) * smallest
    assert_fair(rounded(exact.expand(DRAWS, -1), torch.Generator().manual_seed(1)), exact)


@FORMS
def test_special_values_stay_what_they_are(rounded) -> None:
    largest = torch.finfo(torch.bfloat16).max
    exact = torch.tensor([0.0, -0.0, math.inf, -math.inf, largest, -largest, 2.0**-133, math.nan])
    for seed in range(20):
        found = rounded(exact, torch.Generator().manual_seed(seed))
        assert found[-1].isnan()
        assert torch.equal(found[:-1].view(torch.int32), exact[:-1].view(torch.int32))


@FORMS
def test_infinity_is_the_neighbour_of_the_largest_number(rounded) -> None:
    largest = torch.finfo(torch.bfloat16).max
    half_a_spacing = 2.0**119
    found = rounded(
        torch.full((DRAWS,), largest + half_a_spacing), torch.Generator().manual_seed(0)
    )
    assert set(found.tolist()) == {largest, math.inf}
    share = found.isinf().double().mean().item()
    assert abs(share - 0.5) < STANDARD_ERRORS * math.sqrt(0.25 / DRAWS)


@FORMS
def test_elements_draw_for_themselves(rounded) -> None:
    """Of two columns half-way between neighbours, a quarter of the rows round both away."""
    exact = torch.full((DRAWS, 2), 1 + 2.0**-8)
    away = rounded(exact, torch.Generator().manual_seed(0)) > 1
    both = (away[:, 0] & away[:, 1]).double().mean().item()
    assert abs(both - 0.25) < STANDARD_ERRORS * math.sqrt(0.25 * 0.75 / DRAWS)


@FORMS
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)])
def test_any_layout_is_rounded(rounded, shape) -> None:
    values = torch.randn(*shape, 2, generator=torch.Generator().manual_seed(3))[..., 0]
    found = rounded(values, torch.Generator().manual_seed(0))
    assert found.shape == values.shape
    towards, away = neighbours(values.contiguous())
    assert ((found == towards) | (found == away)).all()


@pytest.mark.parametrize(
    "build",
    [
        partial(SGD, lr=0.3, momentum=0.9),
        partial(AdamW, lr=1e-3),
        partial(AdamW, lr=1e-3, fused=True),
    ],
    ids=["sgd", "adamw", "adamw-fused"],
)
def test_a_step_of_an_optimizer_is_that_of_fp32_on_average(build) -> None:
    """Every row of the weight has the same values and gradients; each draws for itself."""
    generator = torch.Generator().manual_seed(0)
    start = (torch.randn(16, generator=generator) * 3).bfloat16().float()
    inputs = torch.randn(1, 16, generator=generator).bfloat16().float()

    def layer_of(rows: int) -> nn.Linear:
        layer = nn.Linear(16, rows, bias=False)
        layer.weight.data.copy_(start.expand(rows, -1))
        return layer

    exact, many = layer_of(1), layer_of(DRAWS)
    optimizer = build(exact.parameters())
    exact(inputs).sum().backward()
    optimizer.step()
    with Engine(many, build(many.parameters()), recipe="bf16-sr") as engine:
        engine.backward(engine.model(inputs).float().sum())
        engine.step()
        assert_fair(many.weight.detach().float(), exact.weight.detach()[0])
