"""Casts of nested values."""

from collections import OrderedDict, defaultdict, deque
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from halfstep.apex.amp.nested import cast_nested


class Point(NamedTuple):
    x: Any
    y: Any


class Output(OrderedDict):
    """A mapping whose items are attributes too, as of a model that returns several things."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


def test_containers_keep_their_type_and_themselves():
    one = torch.ones(1)
    default = defaultdict(list, a=one)
    for value in ([one], (one,), deque([one]), Point(one, 2), OrderedDict(a=one), default):
        cast = cast_nested(value, torch.float16)
        assert type(cast) is type(value)
        first = next(iter(cast.values() if isinstance(cast, dict) else cast))
        assert first.dtype == torch.float16
    assert default["a"] is one
    assert cast["missing"] == []
    output = Output()
    output["loss"] = one
    assert cast_nested(output, torch.float16).loss.dtype == torch.float16
    assert output.loss is one
    assert cast_nested(MappingProxyType({"a": one}), torch.float16)["a"].dtype == torch.float16


def test_what_is_not_floating_point_is_handed_on():
    module, array, ids = nn.Linear(1, 1), np.ones(1), torch.tensor([1])
    for value in ("text", b"raw", array, 3, None, module, range(3), ids, torch.Size([1])):
        cast = cast_nested(value, torch.float16)
        assert cast is value or cast == value
    assert module.weight.dtype == torch.float32


def test_packed_sequences_are_cast():
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    assert cast_nested([packed], torch.float16)[0].data.dtype == torch.float16
