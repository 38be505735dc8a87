"""Casts to FP8 with transposes: their values, and the bits of the Triton kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

import warm
from halfstep.formats import FORMATS
from halfstep.mechanisms.float8.casts import plain
from halfstep.mechanisms.float8.casts.cast import cast
from halfstep.mechanisms.float8.casts.form import Wanted

SHAPES = ((70, 48), (16, 160))
NUMPY = {"fp8-e4m3": ml_dtypes.float8_e4m3fn, "fp8-e5m2": ml_dtypes.float8_e5m2}


def awkward(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    matrix = torch.randn(shape) * torch.logspace(-6, 3, shape[1])
    # Subnormal numbers of bf16 are left out: the interpreter of Triton reads them as others.
    matrix *= {"tiny": 1e-38 if dtype == torch.float32 else 1e-26}.get(kind, 1.0)
    if kind in ("inf", "nan"):
        matrix[3, 5] = float(kind)
    if kind == "zeros":
        matrix[:, 2], matrix[4] = 0, 0
    if kind == "nothing":
        matrix.zero_()
    return (matrix.t() if kind == "transposed" else matrix).to(dtype)


KINDS = ("normal", "tiny", "inf", "nan", "zeros", "nothing", "transposed")


@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("format_", NUMPY)
@pytest.mark.parametrize("kind", ["normal", "zeros", "transposed"])
def test_values_are_those_of_ml_dtypes(kind, format_, rowwise):
    matrix = awkward(kind, SHAPES[0], torch.bfloat16)
    operands = cast(matrix, FORMATS[format_], Wanted(rows=True, columns=True, rowwise=rowwise))
    for operand, factor in zip(operands, (matrix, matrix.t()), strict=True):
        values = factor.float().numpy()
        largest = np.abs(values).max(1, keepdims=True) if rowwise else np.abs(values).max()
        scale = np.where(largest > 0, np.float32(FORMATS[format_].max) / largest, 1)
        expected = (values * scale.astype(np.float32)).astype(NUMPY[format_]).astype(np.float32)
        found = operand.values.float().numpy()
        length = values.shape[1]
        np.testing.assert_array_equal(found[:, :length], expected)
        assert not found[:, length:].any()
        np.testing.assert_array_equal(operand.decode.numpy(), np.float32(1) / scale)
        assert operand.values.is_contiguous()
    assert operands[1].values.shape[1] % 16 == 0


def test_operands_are_written_again_in_place():
    wanted = Wanted(rows=True, columns=True, rowwise=False)
    format_ = FORMATS["fp8-e4m3"]
    first = cast(torch.ones(32, 16), format_, wanted)
    addresses = [tensor.data_ptr() for operand in first for tensor in operand]
    second = cast(torch.full((32, 16), 3.0), format_, wanted, first)
    assert [tensor.data_ptr() for operand in second for tensor in operand] == addresses
    for operand in second:
        assert (operand.values.float() * operand.decode).unique().tolist() == [3.0]


TRITON = """
import sys
import torch
from halfstep.formats import FORMATS
from halfstep.mechanisms.float8.casts import gpu
from halfstep.mechanisms.float8.casts.form import Wanted
from mechanisms.float8.test_casts import KINDS, NUMPY, SHAPES, assert_same, awkward
number = 0
for dtype in (torch.bfloat16, torch.float32, torch.float16):
    for kind in KINDS:
        for shape in SHAPES:
            matrix = awkward(kind, shape, dtype)
            for rowwise in (False, True):
                for sides in ((True, True), (True, False), (False, True)):
                    wanted = Wanted(*sides, rowwise)
                    for format_ in NUMPY:
                        number += 1
                        if number % int(sys.argv[1]) == 0:
                            assert_same(matrix, FORMATS[format_], wanted, gpu.cast)
print("same bits")
"""


def assert_same(matrix, format_, wanted, cast_):
    for ours, theirs in zip(
        cast_(matrix, format_, wanted), plain.cast(matrix, format_, wanted), strict=True
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            nans = [operand.values.float().isnan() for operand in (ours, theirs)]
            assert torch.equal(*nans)
            codes = [operand.values.view(torch.uint8)[~nans[0]] for operand in (ours, theirs)]
            assert torch.equal(*codes)
            assert torch.equal(ours.decode.view(torch.int32), theirs.decode.view(torch.int32))


def triton_cases(every: int) -> None:
    pytest.importorskip("triton")
    ended = warm.run(warm.interpreted, TRITON, str(every))
    assert ended.out == "same bits\n", ended.err


def test_the_triton_kernels_give_the_bits_of_plain_pytorch():
    triton_cases(29)


@pytest.mark.slow
def test_the_triton_kernels_give_the_bits_of_plain_pytorch_in_every_case():
    triton_cases(1)


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from halfstep.mechanisms.float8.casts import gpu

for rowwise in (False, True):
    for kernel, more in (
        (gpu._largest_kernel, {}),
        (gpu._cast_kernel, {"top": 448.0, "mantissa": 3}),
    ):
        flags = {"rowwise": rowwise, "rows": True, "columns": True, "tile": gpu.TILE, "across": 1}
        constants = {**flags, **more}
        kinds = {"source": "*bf16", "rows_at": "*u8", "columns_at": "*u8"}
        kinds |= {"rows_decode": "*fp32", "columns_decode": "*fp32"}
        kinds |= dict.fromkeys(("height", "width", "padded", "down"), "i32")
        names = kernel.arg_names
        source = ASTSource(
            kernel,
            {name: "constexpr" if name in constants else kinds.get(name, "*i32") for name in names},
            {(names.index(name),): value for name, value in constants.items()},
            {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names)
             if name not in constants},
        )
        options = {"num_warps": gpu.WARPS}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        assert "ld.global.v4" in made.asm["ptx"]  # 16 bytes at once
        if more:
            assert "st.global.v4" in made.asm["ptx"]
print("compiled")
"""


@pytest.mark.slow
def test_the_triton_kernels_compile_for_hopper_and_read_16_bytes_at_once():
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        capture_output=True, text=True, check=False, timeout=500,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "compiled\n", done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_gives_the_bits_of_plain_pytorch(kind, rowwise):
    for format_ in NUMPY:
        matrix = awkward(kind, SHAPES[0], torch.bfloat16).cuda()
        wanted = Wanted(rows=True, columns=True, rowwise=rowwise)
        assert_same(matrix, FORMATS[format_], wanted, cast)
