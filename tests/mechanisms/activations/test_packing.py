"""Tensors in a few bits: three kernels that give the same bits, right on average."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import warm
from halfstep.kernels.native import compiled
from halfstep.mechanisms.activations import packing
from halfstep.mechanisms.activations.packing import Draw, native, reference
from halfstep.mechanisms.activations.packing.form import GROUPS_A_FORWARD

SEED = 2**40 + 17
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def _compiled():
    if native.library() is None:
        pytest.skip("no C compiler")


def awkward(elements: int, scale: float, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values of any size, with zeros of both signs, equal runs, subnormal and non-finite ones."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=generator) * scale + scale * 0.3
    values[::7] = -0.0
    values[1::11] = 0.0
    values[300:900] = 7.7
    values[1000:1001] = torch.inf
    values[1500:1501] = torch.nan
    return values.to(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bit by bit, but for which NaN a NaN is."""
    if one.is_floating_point():
        missing = one.isnan()
        if not torch.equal(missing, other.isnan()):
            return False
        one, other = one[~missing], other[~missing]
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def assert_same_as_reference(kernels, values, bits: int, group: int, counter: int) -> None:
    """Hold all functions of a module of kernels to those in plain PyTorch."""
    forwards, counter = divmod(counter, GROUPS_A_FORWARD)
    draw = Draw(SEED, 3, counter, torch.tensor(forwards))
    expected = reference.pack(values, bits, group, draw)
    found = kernels.pack(values, bits, group, draw)
    assert torch.equal(found.stored, expected.stored)
    for to in DTYPES:
        packed = replace(expected, dtype=to)
        assert same_bits(kernels.unpack(packed), reference.unpack(packed))
    mask = reference.mask(values)
    assert torch.equal(kernels.mask(values), mask)
    assert torch.equal(
        kernels.masked(values, mask).nan_to_num(5),
        torch.where(values <= 0, 0, values).nan_to_num(5),
    )
    assert torch.equal(kernels.mask(values > 0), reference.mask(values > 0))


@given(
    st.integers(1, 3000),
    st.sampled_from((1e-40, 1e-8, 1.0, 3e4, 1e30)),
    st.sampled_from(DTYPES),
    st.sampled_from(packing.BITS),
    st.sampled_from((64, 256, 1024)),
    st.integers(0, 2**33),
)
@settings(max_examples=100)
@pytest.mark.usefixtures("_compiled")
def test_the_c_kernel_gives_the_bits_of_the_reference(elements, scale, dtype, bits, group, counter):
    assert_same_as_reference(
        native, awkward(elements, scale, dtype, elements), bits, group, counter
    )


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("processor", ["", "-mavx2 -mf16c"])
def test_processors_without_avx_512_give_the_same_bits(monkeypatch, tmp_path, processor):
    if processor and platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("flags of another processor")
    monkeypatch.setattr(compiled, "OF_THIS_PROCESSOR", (tuple(processor.split()),))
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-O1"))  # compiled in less time
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = native.library.__wrapped__()
    assert plain is not None
    monkeypatch.setattr(native, "library", lambda: plain)
    for number, (dtype, bits) in enumerate(product(DTYPES, packing.BITS)):
        values = awkward(2000, (1e-40, 1.0, 3e4)[number % 3], dtype, number)
        assert_same_as_reference(native, values, bits, 256, 2**33 + number)


@pytest.mark.usefixtures("_compiled")
def test_threads_share_the_work_and_change_no_bit():
    values = torch.randn(600_001)
    alone = native.pack(values, 4, 256, Draw(1))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = native.pack(values, 4, 256, Draw(1))
        back = native.unpack(together)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone.stored, together.stored)
    assert same_bits(back, reference.unpack(alone))


TRITON = """
import sys
from halfstep.mechanisms.activations.packing import gpu
import torch
from halfstep.mechanisms.activations.packing import Draw, Normaliser, reference
from mechanisms.activations.test_packing import DTYPES, assert_same_as_reference, awkward
cases = [(dtype, bits, group) for dtype in DTYPES for bits in (2, 3, 4, 8) for group in (64, 256)]
for number, (dtype, bits, group) in enumerate(cases[:: int(sys.argv[1])]):
    values = awkward(1600, (1e-8, 1.0, 3e4)[number % 3], dtype, number)[number:]
    assert_same_as_reference(gpu, values, bits, group, 12345678901)
    values, other = torch.randn(2, 40 * 40).to(dtype)
    by = Normaliser(torch.rand(40) + 1, torch.randn(40), other if group == 256 else None)
    packed, mask = gpu.pack_normalised(values, bits, group, Draw(1), by)
    expected = reference.pack(reference.normalised(values, by), bits, group, Draw(1))
    assert torch.equal(packed.stored, expected.stored)
    assert torch.equal(mask, reference.mask(other)) if group == 256 else not mask.numel()
print("same bits", number + 1)
"""


def triton_cases(every: int) -> str:
    pytest.importorskip("triton")
    ended = warm.run(warm.interpreted, TRITON, str(every))
    assert ended.code == 0, ended.err
    return ended.out


def test_the_triton_kernels_give_the_bits_of_the_reference():
    assert triton_cases(7) == "same bits 4\n"


@pytest.mark.slow
def test_the_triton_kernels_give_the_bits_of_the_reference_in_every_case():
    assert triton_cases(1) == "same bits 24\n"


@pytest.mark.parametrize("bits", packing.BITS)
def test_values_are_right_on_average_and_lie_within_a_step(bits):
    torch.manual_seed(0)
    values = torch.randn(512) * 3 + 100
    draws = torch.stack(
        [
            packing.pack(values, bits, draw=Draw(5, counter=2 * draw)).unpack()
            for draw in range(2000)
        ]
    )
    one = packing.pack(values, bits, draw=Draw(5))
    low, step = (each.float().repeat_interleave(256) for each in (one.low, one.step))
    assert ((draws - values).abs() <= step * 1.0001).all()
    up = ((values - low) / step).frac()
    by_chance = step * (up * (1 - up) / 2000).sqrt()
    deviations = (draws.mean(0) - values) / (by_chance + step / 2000)
    assert deviations.abs().max() < 5
    assert abs(deviations.mean()) < 5 / 512**0.5


@pytest.mark.parametrize("bits", packing.BITS)
def test_levels_cover_a_group_without_a_division(bits):
    """The reciprocal of the number of steps is rounded up, so their width is never too small."""
    top = 2**bits - 1
    assert torch.tensor(1 / top).double() * top > 1
    generator = torch.Generator().manual_seed(bits)
    size = (4000,)
    step = (torch.randint(128, 256, size, generator=generator) * 2.0**-7).float()
    span = torch.nextafter(step * top, torch.tensor(torch.inf))  # just above that many bf16 steps
    values = torch.zeros(4000, 64)
    values[:, 0] = span
    one = reference.pack(values.flatten(), bits, 64, Draw(1))
    assert (one.low == 0).all()
    assert (one.step.double() * top >= span.double()).all()
    assert (one.step.double() * top <= span.double() * (1 + 2.0**-6)).all()


@pytest.mark.parametrize("bits", packing.BITS)
def test_the_variance_is_that_of_stochastic_rounding_and_below_actnn_s_bound(bits):
    """Chen et al. (arXiv:2104.14129), section 3.2: G R^2 / (4 B^2) for a group of range R."""
    torch.manual_seed(0)
    values = torch.randn(256)
    draws = torch.stack(
        [packing.pack(values, bits, draw=Draw(5, counter=draw)).unpack() for draw in range(2000)]
    )
    one = packing.pack(values, bits, draw=Draw(5))
    step, low = one.step.float(), one.low.float()
    level = (values - low) / step
    up = level - level.floor()
    expected = (step**2 * up * (1 - up)).sum()
    found = draws.var(0).sum()
    assert abs(found / expected - 1) < 0.05
    span = values.max() - values.min()
    assert found < 256 * span**2 / (4 * (2**bits - 1) ** 2)


def test_zeros_of_a_rectified_tensor_stay_zero():
    values = torch.randn(5000).relu()
    for bits in packing.BITS:
        assert not packing.pack(values, bits, draw=Draw(1)).unpack()[values == 0].any()


def test_nothing_finite_becomes_infinite():
    values = torch.full((256,), 65504.0, dtype=torch.float16)
    values[0] = -65504
    assert packing.pack(values, 2, draw=Draw(1)).unpack().isfinite().all()


def test_it_takes_as_many_bytes_as_it_says():
    packed = packing.pack(torch.randn(256 * 100), 3, draw=Draw(1))
    assert packed.nbytes == 100 * (256 * 3 // 8 + 4)


def test_fake_tensors_know_the_shapes():
    with FakeTensorMode():
        packed = packing.pack(
            torch.empty(1000, device="cuda", dtype=torch.float16), 4, draw=Draw(1)
        )
        assert packed.codes.shape == (4, 128)
        back = packed.unpack()
        assert (back.shape, back.dtype, back.device.type) == ((1000,), torch.float16, "cuda")
        by = packing.Normaliser(torch.empty(8, device="cuda"), torch.empty(8, device="cuda"), back)
        both, mask = packing.pack_normalised(back, 4, draw=Draw(1), by=by)
        assert both.codes.shape == (4, 128)
        assert mask.shape == (4, 32)
        bits = torch.ops.halfstep.mask(back)
        assert torch.ops.halfstep.masked(back, bits).shape == (1000,)


def test_without_a_compiler_the_bits_are_the_same(monkeypatch):
    values = torch.randn(3000)
    expected = packing.pack(values, 4, draw=Draw(9))
    monkeypatch.setattr(native, "library", lambda: None)
    found = packing.pack(values, 4, draw=Draw(9))
    assert same_bits(found.codes, expected.codes)
    assert torch.equal(found.unpack(), expected.unpack())
    assert torch.equal(torch.ops.halfstep.mask(values), reference.mask(values))


def test_a_compiler_that_fails_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", shutil.which("false") or "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library.__wrapped__() is None
    (remembered,) = (tmp_path / "halfstep").iterdir()
    assert remembered.suffix == ".failed"
    monkeypatch.setattr(compiled, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.library.__wrapped__() is None
    os.utime(remembered, (0, 0))
    with pytest.raises(pytest.fail.Exception):
        native.library.__wrapped__()


def test_a_compiler_that_does_not_end_is_stopped_once(monkeypatch, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho >> {tmp_path}/called\nexec sleep 60\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "LONGEST", 0.3)
    assert native.library.__wrapped__() is None
    assert native.library.__wrapped__() is None
    assert (tmp_path / "called").read_text().count("\n") == 1


def test_the_compiler_may_have_arguments(monkeypatch, tmp_path):
    """As `CC="ccache gcc"` has, and a quoted path."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("CC", f"{sys.executable} '{tmp_path}/a wrapper' {compiler}")
    (tmp_path / "a wrapper").write_text(WRAPPER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library.__wrapped__() is not None
    called = (tmp_path / "called").read_text().splitlines()
    assert len(called) == 2, "a flag that the compiler does not know is left out"
    assert "-march=native" in called[1]
    monkeypatch.setenv("CC", "gcc 'never ends")
    assert native.library.__wrapped__() is None


WRAPPER = """
import subprocess, sys, pathlib
with (pathlib.Path(__file__).parent / "called").open("a") as file:
    print(*sys.argv, file=file)
if any("prefer-vector-width" in each for each in sys.argv):
    sys.exit("unknown flag")
if any("O3" in each for each in sys.argv):
    sys.argv[sys.argv.index("-O3")] = "-O0"  # in no time
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""


def test_a_user_without_a_home_and_a_cache_that_others_write_are_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "halfstep").mkdir()
    (tmp_path / "halfstep").chmod(0o777)
    assert native.library.__wrapped__() is None
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert native.library.__wrapped__() is None
