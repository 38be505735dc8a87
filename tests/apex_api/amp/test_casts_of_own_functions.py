"""O1: the caller's own functions, decorated or registered."""

import types

import pytest
import torch

from halfstep.apex import amp

from .tiny import Net

HALF, FLOAT = torch.float16, torch.float32
square = torch.rand(6, 6)


def test_decorators_cast_while_o1_is_active():
    formats = lambda a, b: (a.dtype, b.dtype)  # noqa: E731
    half, single = torch.ones(1).half(), torch.ones(1)
    decorated = [amp.half_function(formats), amp.float_function(formats)]
    widest = amp.promote_function(formats)
    assert decorated[0](single, b=half) == (FLOAT, HALF)
    handle = amp.init()
    assert decorated[0](single, b=half) == (HALF, HALF)
    assert decorated[1](single, half) == (FLOAT, FLOAT)
    assert widest(single, half) == (FLOAT, FLOAT)
    assert widest(half, half) == (HALF, HALF)
    with amp.disable_casts():
        assert decorated[1](half, half) == (HALF, HALF)
    handle._deactivate()
    assert decorated[0](single, half) == (FLOAT, HALF)
    amp.init(enabled=False)
    assert decorated[0](single, half) == (FLOAT, HALF)


@pytest.mark.parametrize(
    ("register", "expected"),
    [
        (amp.register_half_function, (HALF, HALF)),
        (amp.register_float_function, (FLOAT, FLOAT)),
        (amp.register_promote_function, (FLOAT, FLOAT)),
    ],
)
def test_registered_functions_cast_from_the_next_initialize_on(register, expected):
    module = types.SimpleNamespace(formats=lambda a, b: (a.dtype, b.dtype))
    own = module.formats
    register(module, "formats")
    given = torch.ones(1).half(), torch.ones(1)
    assert module.formats(*given) == (HALF, FLOAT)
    for _ in range(2):  # a second one in the same process too
        amp.initialize(Net(), opt_level="O1", verbosity=0)
        assert module.formats(*given) == expected
    amp.initialize(Net(), opt_level="O0", verbosity=0)
    assert module.formats is own


def test_registered_functions_take_the_place_of_torchs_own_list():
    amp.register_float_function(torch, "sigmoid")
    amp.register_float_function(torch, "mm")
    expected = torch.mm(square, square)
    amp.init()
    assert torch.sigmoid(torch.ones(1).half()).dtype == FLOAT
    assert torch.equal(torch.mm(square, square), expected)  # nothing was rounded on the way


@pytest.mark.parametrize(
    "register",
    [amp.register_half_function, amp.register_float_function, amp.register_promote_function],
)
def test_a_function_that_does_not_exist_cannot_be_registered(register):
    with pytest.raises(ValueError, match=r"No function named sofmax in module.*'softmax'"):
        register(torch, "sofmax")
