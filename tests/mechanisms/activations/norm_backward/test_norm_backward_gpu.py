"""The Triton kernels of the backward: what they need of an H100 or H200, and launches and bytes."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from halfstep.mechanisms.activations import norm_backward
from halfstep.mechanisms.activations.packing import Draw
from halfstep.mechanisms.activations.packing import reference as packing
from halfstep.mechanisms.activations.packing.form import unwritten, unwritten_mask
from kernels.sm90 import needs

pytest.importorskip("triton")

from halfstep.mechanisms.activations.norm_backward import gpu

NUMBERS = ("elements", "groups", "rounds", "channels", "parts", "lanes")
OF_CODES = {2: {16: 1}, 3: {16: 1, 8: 1}, 4: {16: 2}, 8: {16: 4}}
"""Loads of a thread that reads the words of a group."""


def compiled(kernel, dtype: str = "fp16", **constants):
    kinds = dict.fromkeys(NUMBERS, "i32") | {"mask": "*u8", "stored": "*u8"}
    kinds |= dict.fromkeys(("gradient", "target"), f"*{dtype}")
    names = ("partial", "factors", "deviation", "weight", "of_weight", "of_bias")
    kinds |= dict.fromkeys(names, "*fp32") | {"share": "fp32"}
    return needs(kernel, kinds, constants, enable_fp_fusion=False)


TILE = {"group": 256, "at_once": 32}


@pytest.mark.parametrize(("dtype", "bits"), [("fp16", 2), ("bf16", 4)])
@pytest.mark.parametrize("masks", [True, False])
def test_sums_read_the_gradient_and_the_codes_by_16_bytes(dtype, bits, masks):
    found = compiled(
        gpu._sums_kernel, dtype, bits=bits, masks=masks, stride=1, rows=2, some=gpu.SOME, **TILE
    )
    assert found.spilled == 0
    assert found.registers <= 168, "three programs of 128 threads share a processor"
    # A thread has half of its group: 32 elements. The masked gradient is written too.
    wide = {size: n for size, n in found.moved["ld"].items() if size > 2}
    assert wide == {**OF_CODES[bits], 16: OF_CODES[bits][16] + 4, **({8: 1} if masks else {})}
    assert found.moved["st"][16] == (4 if masks else 0)


@pytest.mark.parametrize(("dtype", "bits"), [("fp16", 2), ("bf16", 4)])
def test_gradients_of_values_move_16_bytes_without_another_thread(dtype, bits):
    found = compiled(gpu._values_kernel, dtype, bits=bits, **TILE)
    assert (found.spilled, found.exchanges) == (0, 0)
    assert found.registers <= 64
    # For each 8 elements, 8 of each of three factors, which lie in a cache.
    wide = {size: n for size, n in found.moved["ld"].items() if size > 2}
    assert wide == {16: OF_CODES[bits][16] + 8 + 8 * 3 * 2}
    assert found.moved["st"] == {16: 8}


def test_totals_spill_nothing():
    found = compiled(gpu._totals_kernel, weighs=True, at_once=gpu.ROWS, block=gpu.CHANNELS)
    assert found.spilled == 0
    assert found.moved["ld"][16] == 8


@pytest.fixture
def launches(monkeypatch):
    """The arguments of each launch, instead of the launch, and the tensor whose GPU is current."""
    entered: list[torch.Tensor] = []
    launched: list[tuple[torch.Tensor, tuple]] = []

    @contextmanager
    def device_of(tensor: torch.Tensor):
        entered.append(tensor)
        yield
        entered.pop()

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]):
            return lambda *args, **_: launched.append((entered[-1], args))

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(norm_backward, "_kernels", lambda _: gpu)
    for name in ("_sums_kernel", "_totals_kernel", "_values_kernel"):
        monkeypatch.setattr(gpu, name, Kernel())
    return launched


@pytest.mark.parametrize("rectified", [True, False])
def test_a_layer_costs_three_launches_with_the_rectifier_after_it(launches, rectified):
    """Before: masked, unpack, ones, zeros, a product, and at least two of torch's batch norm."""
    channels = 16
    gradient = torch.randn(64 * channels)
    mask = packing.mask(gradient) if rectified else None
    packed = packing.pack(gradient, 4, 256, Draw(1))
    masked, partial = norm_backward.sums(gradient, mask, packed, channels)
    norm_backward.gradients(masked, partial, packed, torch.ones(channels), torch.ones(channels))
    assert len(launches) == 3
    assert (masked is gradient) is not rectified


def test_a_layer_moves_fewer_bytes_than_with_unpacked_values(launches):
    """Each kernel reads or writes each of its tensors once; torch's batch norm reads two twice."""
    channels = 64
    gradient = torch.empty(2**27, dtype=torch.float16)  # memory that nothing touches
    mask, packed = unwritten_mask(gradient), unwritten(gradient, 4, 256)
    ones = torch.ones(channels)
    norm_backward.gradients(
        *norm_backward.sums(gradient, mask, packed, channels), packed, ones, ones
    )
    moved = sum(
        each.nbytes for _, args in launches for each in args if isinstance(each, torch.Tensor)
    )
    half, codes, bit = gradient.nbytes, packed.nbytes, mask.nbytes
    before = (2 * half + bit) + (codes + half) + 2 * half + 3 * half
    assert before / len(gradient) == pytest.approx(16.64, abs=0.01)
    assert moved / len(gradient) == pytest.approx(9.16, abs=0.1)
