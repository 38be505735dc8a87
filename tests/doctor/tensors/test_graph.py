"""What a graph shows of a loss."""

from __future__ import annotations

import torch
from torch import nn

from halfstep.doctor.tensors.graph import passages, terms_of


def test_sums_are_taken_apart_into_the_same_terms() -> None:
    layer, images = nn.Linear(3, 2), torch.randn(4, 3)
    one, other = layer(images).square().mean(), layer(images).abs().mean()
    apart = terms_of([one]) | terms_of([other])
    assert len(apart) == 2
    assert terms_of([one + other]) == terms_of([sum([one, other])]) == apart
    assert terms_of([(0.0 + one / 2) - 3 * other]) == terms_of([one, other]) == apart


def test_products_of_one_output_are_different_terms() -> None:
    scores = nn.Linear(3, 2)(torch.randn(4, 3))
    one, other = (scores * 2).sum(), (scores * 3).sum()
    assert terms_of([one]).isdisjoint(terms_of([other]))


def test_a_leaf_has_no_terms() -> None:
    assert terms_of([torch.zeros((), requires_grad=True)]) == frozenset()


def test_a_loss_passes_what_is_between_it_and_other_parameters() -> None:
    torch.manual_seed(0)
    below, above = nn.Linear(3, 3), nn.Linear(3, 1)
    owner = {id(each): 0 for each in below.parameters()}
    owner |= {id(each): 1 for each in above.parameters()}

    def owners(parameter: torch.Tensor) -> frozenset[int]:
        return frozenset({owner[id(parameter)]})

    images = torch.randn(4, 3)
    assert passages([above(below(images)).mean()], owners) == {(1, 0)}
    assert passages([above(below(images).detach()).mean()], owners) == frozenset()
    # Two losses side by side pass nothing on the way to each other.
    assert passages([above(images).mean() + below(images).mean()], owners) == frozenset()
