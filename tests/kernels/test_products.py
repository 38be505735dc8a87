"""Claims on the products of a device: the newest decides, and everything is given back."""

from __future__ import annotations

import pytest
import torch

from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.products import ON
from halfstep.mechanisms.accumulator.kernels import fp16_accumulation
from halfstep.mechanisms.matmul.tf32 import ieee_products, tf32_products

LOST_IN_TF32 = 1 + 2.0**-11


def single() -> float:
    return float(torch.full((1, 1), LOST_IN_TF32) @ torch.ones(1, 1))


def half_sum() -> float:
    """2048 and sixteen times 1 behind it: 2048 with an fp16 accumulator."""
    left = torch.ones(1, 32).half()
    left[0, 0] = 2048
    left[0, 1:16] = 0
    left[0, 17:] = 0
    return float(left @ torch.ones(32, 1).half())


@pytest.fixture(autouse=True)
def _given_back():
    yield
    assert not ON["cpu"].registered
    assert single() == LOST_IN_TF32


def test_the_newest_claim_decides_and_the_older_one_comes_back() -> None:
    with tf32_products("cpu"):
        assert single() == 1
        with ieee_products("cpu"):
            assert single() == LOST_IN_TF32
            with tf32_products("cpu"):
                assert single() == 1
        assert single() == 1


def test_claims_end_in_any_order() -> None:
    tf32, ieee = tf32_products("cpu"), ieee_products("cpu")
    tf32.__enter__()
    ieee.__enter__()
    tf32.__exit__(None, None, None)
    assert single() == LOST_IN_TF32
    ieee.__exit__(None, None, None)


def test_claims_of_different_formats_leave_each_other_alone() -> None:
    with tf32_products("cpu"), cpu_half(), fp16_accumulation("cpu"):
        assert single() == 1
        left = torch.full((1, 1), 1 + 2.0**-7).bfloat16()
        assert float(left @ torch.ones(1, 1).bfloat16()) == 1 + 2.0**-7


def test_exact_products_register_nothing() -> None:
    with ieee_products("cpu"):
        assert not ON["cpu"].registered


def test_a_gpus_kernels_can_be_claimed_and_given_back_without_one() -> None:
    with tf32_products("cuda"), fp16_accumulation("cuda"):
        assert ON["cuda"].registered
        assert single() == LOST_IN_TF32
    assert not ON["cuda"].registered


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_rehearses_too() -> None:
    with tf32_products("cuda"):
        assert float(torch.full((1, 1), LOST_IN_TF32).cuda() @ torch.ones(1, 1).cuda()) == 1
