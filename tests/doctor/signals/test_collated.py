"""Tensors of a batch in another order, and the collate functions that are looked at for them."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, IterableDataset

from halfstep.doctor import Watch
from halfstep.doctor.signals.data.collated import in_another_order

INPUTS = torch.tensor([[3.0, 1.0], [1.0, 4.0], [2.0, 5.0], [0.0, 9.0]])
ORDER = INPUTS[:, 0].argsort()
TARGETS = torch.tensor([7.0, 8.0, 9.0, 6.0])
SAMPLES = [*zip(INPUTS, TARGETS.tolist(), strict=True)]


def test_inputs_that_are_sorted_without_their_targets_are_in_another_order() -> None:
    assert in_another_order(SAMPLES, [INPUTS[ORDER], TARGETS]) == {0}


def test_parts_that_are_sorted_together_are_in_one_order() -> None:
    assert in_another_order(SAMPLES, [INPUTS[ORDER], TARGETS[ORDER]]) == frozenset()


def test_a_sorted_copy_beside_the_inputs_is_no_input_in_another_order() -> None:
    assert in_another_order(SAMPLES, [INPUTS, TARGETS, INPUTS[ORDER]]) == frozenset()


def test_samples_that_are_sorted_among_equal_targets_keep_their_targets() -> None:
    samples = [(each, target) for each, target in zip(INPUTS, (1.0, 1.0, 2.0, 2.0), strict=True)]
    within = INPUTS[[1, 0, 3, 2]]
    assert in_another_order(samples, [within, torch.tensor([1.0, 1.0, 2.0, 2.0])]) == frozenset()


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(2000))


def doubled(sample: int) -> torch.Tensor:
    return torch.tensor([2.0 * sample])


def test_a_loader_keeps_its_own_collate_function() -> None:
    """Without batches, the function is given samples alone, and nothing is learned of it."""
    with Watch() as watch:
        iterator = iter(DataLoader(Numbers(), batch_size=None, collate_fn=doubled))
        last = [*iterator][-1]
        assert iterator._dataset_fetcher.collate_fn is doubled
    assert last == 3998
    assert not watch.troubles
