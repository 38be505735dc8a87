"""Summaries of tensors that are not plain floating-point ones, and results in float64."""

from __future__ import annotations

import math

import torch

from halfstep.doctor.tensors.operands import dead_rows, exact
from halfstep.doctor.tensors.summary import is_finite, summary


def test_the_parts_of_complex_numbers_are_summarised() -> None:
    numbers = torch.tensor([complex(3, math.nan), complex(-math.inf, 0), complex(1, -2)])
    counted = summary(numbers)
    assert (counted.nans, counted.infs, counted.negative_infs, counted.zeros) == (1, 1, 1, 1)
    assert (counted.largest, counted.lowest) == (3, -2)
    assert not is_finite(numbers)
    assert not is_finite(numbers[:1].conj())
    assert is_finite(numbers[2:])


def test_the_values_of_a_sparse_tensor_are_summarised() -> None:
    sparse = torch.tensor([[0.0, math.nan], [2.0, 0.0]]).to_sparse()
    assert (summary(sparse).nans, summary(sparse).largest) == (1, 2)
    assert not is_finite(sparse)


def test_an_operator_in_place_has_a_result_in_float64_of_the_numbers_before_it() -> None:
    numbers = torch.tensor([300.0], dtype=torch.float16)
    before = {id(numbers): numbers.clone()}
    numbers.mul_(300)
    assert numbers.isinf().all()
    func = torch.ops.aten.mul_.Scalar
    assert exact(func, (numbers, 300), {}, before) == 90000
    doubles = torch.tensor([2.0], dtype=torch.float64)
    assert exact(func, (doubles, 3), {}) == 6
    assert doubles.item() == 2


def test_rows_are_along_the_dimension_in_which_a_second_tensor_broadcasts() -> None:
    scores = torch.zeros(3, 4)
    scores[:, 1] = -math.inf
    assert dead_rows([scores, scores.amax(0)], (scores, scores)) == 1
    assert dead_rows([scores, scores.amax(1, keepdim=True)], (scores, scores)) == 0
    assert dead_rows([scores], (scores, 0, False)) == 1
