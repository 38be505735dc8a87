"""Casts around functions by name."""

import types

import pytest
import torch
from torch import nn

from halfstep.apex.amp.function_casts import FunctionCasts

HALF, FLOAT, BF16 = torch.float16, torch.float32, torch.bfloat16


@pytest.fixture
def module():
    def formats(*args, **kwargs):
        return [value.dtype for value in (*args, *kwargs.values())]

    return types.SimpleNamespace(formats=formats)


def test_a_half_format_can_be_bf16(module):
    casts = FunctionCasts(half=BF16)
    casts.patch(module, "formats", casts.to_half)
    assert module.formats(torch.ones(1), b=torch.ones(1).half()) == [BF16, BF16]


def test_cpu_tensors_can_be_left_out(module):
    casts = FunctionCasts(cpu=False)
    casts.patch(module, "formats", casts.to_half)
    assert module.formats(torch.ones(1), torch.ones(1, device="meta")) == [FLOAT, HALF]


def test_integers_are_never_cast(module):
    casts = FunctionCasts()
    casts.patch(module, "formats", casts.to_half)
    assert module.formats(torch.ones(1).long()) == [torch.long]


def test_suspending_nests_and_survives_errors(module):
    casts = FunctionCasts()
    casts.patch(module, "formats", casts.to_half)
    with casts.suspended():
        with casts.suspended():
            pass
        assert module.formats(torch.ones(1)) == [FLOAT]
    with pytest.raises(KeyError), casts.suspended():
        raise KeyError
    assert module.formats(torch.ones(1)) == [HALF]


def test_restoring_undoes_patches_of_patches_and_inherited_methods(module):
    class Child(nn.Linear):
        pass

    own = module.formats
    casts = FunctionCasts()
    casts.patch(module, "formats", casts.to_half)
    casts.patch(module, "formats", casts.to_float)
    casts.patch(Child, "forward", casts.to_float)
    casts.patch(module, "nowhere", casts.to_half)
    assert module.formats(torch.ones(1).half()) == [HALF]  # the first patch is the innermost
    casts.restore()
    assert module.formats is own
    assert "forward" not in vars(Child)
    assert not hasattr(module, "nowhere")


def test_casts_of_parameters_are_kept_by_value(module):
    casts = FunctionCasts()
    weight = nn.Parameter(torch.ones(1))
    seen = []
    module.keep = seen.append
    casts.patch(module, "keep", casts.to_half)
    module.keep(weight)
    module.keep(weight)
    with torch.no_grad():
        weight.fill_(2.0)
    module.keep(weight)
    casts.forget()
    module.keep(weight)
    assert seen[0] is seen[1]
    assert [each.item() for each in seen] == [1.0, 1.0, 2.0, 2.0]
    assert seen[3] is not seen[2]


def test_parameters_made_for_inference_are_cast_and_not_kept(module):
    casts = FunctionCasts()
    casts.patch(module, "formats", casts.to_half)
    with torch.inference_mode():
        weight = nn.Parameter(torch.ones(1))
    assert module.formats(weight) == [HALF]  # such a tensor has no version to keep a cast by
    assert not casts.cache


def test_casts_of_parameters_are_kept_in_evaluation_too(module):
    casts = FunctionCasts()
    weight = nn.Parameter(torch.ones(1))
    seen = []
    module.keep = seen.append
    casts.patch(module, "keep", casts.to_half)
    with torch.no_grad():
        module.keep(weight)
        module.keep(weight)
    module.keep(weight)
    assert seen[0] is seen[1]
    assert [each.requires_grad for each in seen[1:]] == [False, True]
