"""The backward that reads packed values: its definition is the gradient, and its kernels' bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

import warm
from halfstep.mechanisms.activations import norm_backward
from halfstep.mechanisms.activations.norm_backward import reference, tiles_of
from halfstep.mechanisms.activations.packing import Draw, Packed
from halfstep.mechanisms.activations.packing import reference as packing

CASES = [
    # dtype, bits, channels, elements of a channel, group, whether a rectifier follows
    (torch.float16, 4, 512, 21, 256, True),
    (torch.float32, 8, 16, 520, 256, True),
    (torch.bfloat16, 4, 64, 301, 64, False),
    (torch.float16, 3, 2048, 13, 256, True),
    (torch.bfloat16, 2, 24, 700, 256, False),
    (torch.float16, 2, 40, 333, 1024, False),
    (torch.bfloat16, 8, 3, 3001, 256, True),
]


def given(case, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor | None, Packed]:
    """A gradient, a mask and packed values, some of them not finite."""
    dtype, bits, channels, rows, group, masks = case
    generator = torch.Generator().manual_seed(seed)
    gradient, values, before = torch.randn(3, channels * rows, generator=generator).to(dtype)
    values[-5] = torch.inf  # in the last group, which may be partly filled
    mask = packing.mask(before) if masks else None
    return gradient, mask, packing.pack(values, bits, group, Draw(1))


def of_channels(case, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Reciprocal deviations, and weights or None."""
    generator = torch.Generator().manual_seed(seed)
    deviation, weight = torch.rand(2, case[2], generator=generator) + 0.5
    return deviation, weight if case[1] % 2 == 0 else None


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    missing = one.isnan()
    return torch.equal(missing, other.isnan()) and torch.equal(one[~missing], other[~missing])


def assert_same_bits(kernels, case) -> None:
    """Hold a module of kernels to the reference."""
    gradient, mask, packed = given(case)
    expected = reference.sums(gradient, mask, packed, case[2])
    found = kernels.sums(gradient, mask, packed, case[2])
    assert all(map(same_bits, found, expected))
    arguments = expected[1], 1 / case[3], *of_channels(case)
    totals = reference.totals(*arguments)
    assert all(map(same_bits, kernels.totals(*arguments), totals))
    masked = gradient if mask is None else expected[0]
    arguments = masked, packed, totals[2]
    assert same_bits(kernels.values(*arguments), reference.values(*arguments))


TRITON = """
import sys
from halfstep.mechanisms.activations.norm_backward import gpu
from mechanisms.activations.norm_backward.test_norm_backward import CASES, assert_same_bits
cases = CASES[:: int(sys.argv[1])]
for case in cases:
    assert_same_bits(gpu, case)
print("same bits", len(cases))
"""


def triton_cases(every: int) -> str:
    pytest.importorskip("triton")
    ended = warm.run(warm.interpreted, TRITON, str(every))
    assert ended.code == 0, ended.err
    return ended.out


def test_the_triton_kernels_give_the_bits_of_the_reference():
    assert triton_cases(4) == "same bits 2\n"


@pytest.mark.slow
def test_the_triton_kernels_give_the_bits_of_the_reference_in_every_case():
    assert triton_cases(1) == f"same bits {len(CASES)}\n"


class OnGpu:
    """The kernels, run on a GPU with tensors of the CPU."""

    def __getattr__(self, name: str):
        from halfstep.mechanisms.activations.norm_backward import gpu

        def moved(one, device):
            if isinstance(one, Packed):
                return replace(one, stored=one.stored.to(device))
            return one.to(device) if isinstance(one, torch.Tensor) else one

        def run(*arguments):
            found = getattr(gpu, name)(*(moved(each, "cuda") for each in arguments))
            if isinstance(found, torch.Tensor):
                return found.cpu()
            return tuple(each.cpu() for each in found)

        return run


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gpu_gives_the_bits_of_the_reference(case):
    assert_same_bits(OnGpu(), case)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_those_of_autograd_in_fp64(case):
    dtype, _, channels, _, group, _ = case
    gradient, mask, _ = given(case)
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(len(gradient), generator=generator).view(-1, channels)
    exact = values.double().requires_grad_()
    deviation, weight = of_channels(case)
    used = (torch.ones_like(deviation) if weight is None else weight).double().requires_grad_()
    bias = torch.zeros_like(used).requires_grad_()
    centred = exact - exact.mean(0)
    normalised = centred / centred.square().mean(0).sqrt()
    kept = gradient if mask is None else packing.masked(gradient, mask)
    (normalised * used + bias).backward(kept.double().view(-1, channels))
    scale = 1 / centred.detach().square().mean(0).sqrt()

    flat = normalised.detach().to(dtype).flatten()
    packed = packing.pack(flat, 8, group, Draw(1))
    masked, partial = norm_backward.sums(gradient, mask, packed, channels)
    of_values, of_weight, of_bias = norm_backward.gradients(
        masked, partial, packed, scale.float(), weight
    )
    assert of_values.dtype == dtype
    for found, wanted in (
        (of_values.view(-1, channels), exact),
        (of_weight, used),
        (of_bias, bias),
    ):
        error = (found.double() - wanted.grad).norm() / wanted.grad.norm()
        assert error < 0.02, "8 bits of the values, and the dtype of the gradient"
    unpacked = packing.unpack(packed).double().view(-1, channels)
    gradient = masked.double().view(-1, channels)
    for found, wanted in ((of_bias, gradient.sum(0)), (of_weight, (gradient * unpacked).sum(0))):
        assert torch.allclose(found.double(), wanted, rtol=1e-6, atol=1e-4)
    along = (gradient * unpacked).mean(0)
    wanted = (gradient - gradient.mean(0) - unpacked * along) * scale
    wanted = wanted if weight is None else wanted * weight
    error = (of_values.view(-1, channels).double() - wanted).norm() / wanted.norm()
    assert error < torch.finfo(dtype).eps


def test_the_gradient_is_right_on_average():
    """It is linear in the packed values but for their product with their own sum."""
    generator = torch.Generator().manual_seed(0)
    channels, rows = 16, 64
    gradient = torch.randn(rows * channels, generator=generator)
    values = torch.randn(rows * channels, generator=generator)
    values = torch.nn.functional.batch_norm(values.view(rows, channels), None, None, training=True)
    exact = packing.pack(values.flatten(), 8, 256, Draw(0))
    found = []
    for draw in range(300):
        packed = packing.pack(values.flatten(), 4, 256, Draw(3, counter=draw * exact.groups))
        _, partial = norm_backward.sums(gradient, None, packed, channels)
        _, of_weight, _ = norm_backward.gradients(
            gradient, partial, packed, torch.ones(channels), None
        )
        found.append(of_weight)
    draws = torch.stack(found).double()
    wanted = (gradient.double().view(rows, channels) * values.double()).sum(0)
    assert ((draws.mean(0) - wanted).abs() <= 5 * draws.std(0) / 300**0.5 + 1e-3).all()


@pytest.mark.parametrize("channels", [3, 8, 24, 64, 96, 256, 320, 1000, 2048, 4096])
@pytest.mark.parametrize("elements", [4096, 10**6, 3 * 10**8])
def test_every_group_is_in_one_tile_and_sums_are_few(channels, elements):
    tiles = tiles_of(elements, channels, 256)
    each = tiles.at_once * tiles.rounds * 256
    assert tiles.programs * each >= elements
    assert (tiles.parts - 1) * tiles.stride * each < elements
    assert tiles.lanes * channels == tiles.rows * tiles.stride * 256
    assert tiles.rows * tiles.stride * 256 % channels == 0, "the rows have the same channels again"
    if elements > 10**8:
        assert tiles.fit(elements, channels)
        assert 2 * 4 * tiles.parts * tiles.lanes * channels < 0.06 * 2 * elements, "bytes"


def test_fake_tensors_know_the_shapes():
    for case in CASES:
        gradient, mask, packed = given(case)
        deviation, weight = of_channels(case)
        masked, partial = norm_backward.sums(gradient, mask, packed, case[2])
        real = [masked, partial]
        real += norm_backward.gradients(masked, partial, packed, deviation, weight)
        with FakeTensorMode() as mode:
            names = (gradient, mask, packed.stored, deviation, weight, partial)
            one, two, stored, three, four, five = (
                None if each is None else mode.from_tensor(each) for each in names
            )
            kept = Packed(stored, packed.bits, packed.group, packed.elements, packed.dtype)
            fake = [*norm_backward.sums(one, two, kept, case[2])]
            fake += norm_backward.gradients(one, five, kept, three, four)
        assert [(each.shape, each.dtype) for each in fake] == [
            (each.shape, each.dtype) for each in real
        ]
