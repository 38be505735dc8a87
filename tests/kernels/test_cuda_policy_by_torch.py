"""CUDA's autocast policy on a CPU, held to the lists that PyTorch tests its own on a GPU with.

Each operator must return the format of its list, and the bits that it returns without autocast once
its arguments have been cast by hand.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_map

from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.cuda_policy import cuda_autocast_policy

RAN_IN = {"fp16": torch.float16, "fp32": torch.float32, "need_autocast_promote": torch.float32}
OF_THE_GPU = {"cudnn_convolution", "cudnn_convolution_transpose"}
NAMESPACES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg}


def torchs_lists():
    """Return the lists; the module beside them wants a test suite's packages and has settings."""
    beside = "torch.testing._internal.common_utils"
    wanted = "torch.testing._internal.autocast_test_lists"
    kept = sys.modules.get(beside)
    sys.modules[beside] = kept or SimpleNamespace(TEST_WITH_ROCM=False, TestCase=object)
    try:
        lists = importlib.import_module(wanted).AutocastTestLists
    finally:
        if kept is None:
            del sys.modules[beside], sys.modules[wanted]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return lists(torch.device("cpu"))


def cases():
    for name, entries in vars(torchs_lists()).items():
        where, _, kind = name.partition("_")
        for place, (operator, arguments, *more) in enumerate(entries):
            if isinstance(arguments, str) or operator in OF_THE_GPU or name == "banned":
                continue  # torch leaves the first out as well: a tuple is missing
            extra = more[0] if more else None
            yield pytest.param(
                where, kind, operator, arguments, extra, id=f"{name}-{place}-{operator}"
            )


CASES = list(cases())


def call(where, operator, arguments, keywords):
    if where == "methods":
        return getattr(arguments[0], operator)(*arguments[1:])
    home = NAMESPACES[where]
    function = getattr(home if hasattr(home, operator) else torch.ops.aten, operator)
    return function(*arguments, **keywords)


def cast(tree, dtype):
    return tree_map(
        lambda leaf: (
            leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
        ),
        tree,
    )


@pytest.fixture(autouse=True, scope="module")
def _policy():
    with cuda_autocast_policy(), cpu_half():
        yield


@pytest.mark.parametrize(("where", "kind", "operator", "arguments", "extra"), CASES)
def test_an_operator_of_torchs_lists_returns_its_format_and_bits(
    where, kind, operator, arguments, extra
):
    if where == "methods" and not hasattr(torch.Tensor, operator):
        pytest.skip(f"tensors have no {operator}")
    keywords = extra if isinstance(extra, dict) else {}
    with torch.autocast("cpu", torch.float16):
        result = call(where, operator, arguments, keywords)
        with torch.autocast("cpu", enabled=False):
            by_hand = cast(arguments, RAN_IN[kind]) if kind in RAN_IN else arguments
            expected = call(where, operator, by_hand, keywords)
    format_ = extra if isinstance(extra, torch.dtype) else RAN_IN.get(kind)
    first = result[0] if isinstance(result, tuple) else result
    if isinstance(first, torch.Tensor):
        # An in-place operator or one that promotes may narrow again, as index_put does not.
        assert first.dtype == format_
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_what_cuda_bans_is_refused_on_a_cpu():
    ((operator, arguments, home),) = torchs_lists().banned
    with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError, match="unsafe"):
        getattr(home, operator)(*arguments)


def test_the_lists_are_not_empty():
    assert len(CASES) > 100
    assert {case.values[1] for case in CASES} == {*RAN_IN, "expect_builtin_promote"}
