"""O1's lists: they are Apex's, all of them are patched, and a program may change them."""

import torch
import torch.nn.functional as F  # noqa: N812  # as programs write it
from torch import nn

from halfstep.apex import amp
from halfstep.apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides

HALF, FLOAT = torch.float16, torch.float32
x, image = torch.rand(4, 6), torch.rand(2, 4, 8, 8)


def listed(kind):
    """Return Apex's names of one kind with the functions and methods that they stand for."""
    found = {}
    for module in (functional_overrides, torch_overrides, tensor_overrides):
        for name in getattr(module, kind, ()):
            owners = [module.MODULE, *([torch.Tensor] if module is torch_overrides else [])]
            for owner in owners:
                if hasattr(owner, name):
                    found[owner, name] = getattr(owner, name)
    return found


def test_the_lists_are_apexs():
    modules = (functional_overrides, torch_overrides, tensor_overrides)
    counts = [
        len({name for module in modules for kind in kinds for name in getattr(module, kind, ())})
        for kinds in (["FP16_FUNCS"], ["FP32_FUNCS"], ["CASTS", "SEQUENCE_CASTS"])
    ]
    assert counts == [19, 56, 39]
    assert len(functional_overrides.BANNED_FUNCS) == 1


def test_everything_listed_is_patched_and_put_back():
    def everything():
        kinds = [f"{k}{since}" for k in ("FP16_FUNCS", "FP32_FUNCS") for since in ("", "_SINCE")]
        kinds += ["CASTS", "CASTS_SINCE", "SEQUENCE_CASTS"]
        found = {key: value for kind in kinds for key, value in listed(kind).items()}
        return found | {"rnn": nn.modules.rnn._VF, "banned": F.binary_cross_entropy}

    before, methods = everything(), dict(vars(torch.Tensor))
    handle = amp.init()
    concatenation = {(torch.Tensor, "cat"), (torch.Tensor, "stack")}
    same = {key for key, value in everything().items() if value is before[key]}
    assert same <= concatenation
    handle._deactivate()
    assert everything() == before
    assert dict(vars(torch.Tensor)) == methods


def test_a_program_may_change_the_lists(monkeypatch):
    names = [name for name in functional_overrides.FP32_FUNCS if name != "softmax"]
    monkeypatch.setattr(functional_overrides, "FP32_FUNCS", names)
    monkeypatch.setattr(tensor_overrides, "FP16_FUNCS", ["__matmul__", "relu"])
    amp.init()
    assert F.gelu(x.half()).dtype == FLOAT
    assert F.softmax(image.half(), dim=1).dtype == FLOAT  # as Tensor.softmax, which it calls
    assert x.relu().dtype == HALF
