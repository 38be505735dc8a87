"""Multi-tensor kernels against plain arithmetic in fp64."""

import pytest
import torch

from halfstep.apex import amp_C

FORMATS = [torch.float32, torch.float16]


def lists(count, *formats):
    torch.manual_seed(0)
    shapes = [(2, 3), (5,), ()]
    return [[torch.randn(shape).to(formats[i]) for shape in shapes] for i in range(count)]


def flag():
    return torch.zeros(1, dtype=torch.int)


@pytest.mark.parametrize("format_", FORMATS)
def test_norms_of_all_and_of_each(format_):
    (tensors,) = lists(1, format_)
    norm, each = amp_C.multi_tensor_l2norm(2048, flag(), [tensors], per_tensor=True)
    expected = torch.stack([tensor.double().norm() for tensor in tensors])
    torch.testing.assert_close(each.double(), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(norm.double(), expected.norm().reshape(1), rtol=1e-6, atol=0)
    assert amp_C.multi_tensor_l2norm(2048, flag(), [tensors])[1].shape == (0,)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("format_", FORMATS)
def test_scaling_into_another_format(format_, to):
    source, target = lists(2, format_, to)
    noop = flag()
    amp_C.multi_tensor_scale(2048, noop, [source, target], 0.25)
    for one, other in zip(source, target, strict=True):
        assert torch.equal(other, (one.double() / 4).to(to))
    assert noop.item() == 0


def test_what_is_not_finite_is_flagged_and_the_flag_stays():
    source, target = lists(2, torch.float16, torch.float32)
    source[1][2] = float("inf")
    noop = flag()
    amp_C.multi_tensor_scale(2048, noop, [source, target], 1.0)
    assert noop.item() == 1
    source[1][2] = 0
    amp_C.multi_tensor_scale(2048, noop, [source, target], 1.0)
    assert noop.item() == 1


def test_sums_of_two_lists():
    x, y, out = lists(3, torch.float16, torch.float32, torch.float32)
    amp_C.multi_tensor_axpby(2048, flag(), [x, y, out], 2.0, -0.5, -1)
    for one, two, sum_ in zip(x, y, out, strict=True):
        expected = (2 * one.double() - two.double() / 2).float()
        torch.testing.assert_close(sum_, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("checked", "flagged"), [(-1, 1), (0, 0), (1, 1)])
def test_only_the_argument_that_is_asked_for_is_checked(checked, flagged):
    x, y, out = lists(3, *[torch.float32] * 3)
    y[0][0, 0] = float("nan")
    noop = flag()
    amp_C.multi_tensor_axpby(2048, noop, [x, y, out], 1.0, 1.0, checked)
    assert noop.item() == flagged


def test_a_kernel_that_is_missing_says_so_by_name():
    with pytest.raises(AttributeError, match=r"amp_C\.multi_tensor_lamb is compiled code"):
        _ = amp_C.multi_tensor_lamb
