"""Optimizers with moments in bf16, against torch's own with moments in fp32."""

import io

import pytest
import torch
from torch import nn

from halfstep.engine import Engine
from halfstep.optim.bf16 import AdamBf16, SGDBf16

# Moments of the first steps are numbers of few digits, which bf16 holds: nothing is rounded.
EXACT = {"betas": (0.5, 0.75), "lr": 0.125, "eps": 1e-3}


def params(dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size).to(dtype)) for size in ((3, 5), (7,), (2, 3, 4))]


def step(optimizer, number):
    torch.manual_seed(number)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randint(1, 5, param.shape).to(param.dtype)
    optimizer.step()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda p: AdamBf16(p, **EXACT, weight_decay=0.25, decoupled=True),
            lambda p: torch.optim.AdamW(p, **EXACT, weight_decay=0.25, fused=True),
        ),
        (lambda p: AdamBf16(p, **EXACT), lambda p: torch.optim.Adam(p, **EXACT, fused=True)),
        (
            lambda p: SGDBf16(p, 0.125, 0.5, nesterov=True),
            lambda p: torch.optim.SGD(p, 0.125, 0.5, nesterov=True, fused=True),
        ),
    ],
)
def test_moments_that_bf16_holds_give_torchs_step(ours, theirs):
    mine, reference = params(), params()
    optimizers = ours(mine), theirs(reference)
    for number in range(3):
        for each in optimizers:
            step(each, number)
    assert all(map(torch.equal, mine, reference))
    sizes = [
        sum(t.nbytes for s in each.state.values() for k, t in s.items() if k != "step")
        for each in optimizers
    ]
    assert sizes[0] == sizes[1] / 2


def test_second_moment_falls_as_it_does_in_fp32():
    """Rounded to nearest it would stay where it is: 0.1 % is less than half of bf16's spacing."""
    param = nn.Parameter(torch.zeros(20_000))
    optimizer = AdamBf16([param], lr=0.0, betas=(0.9, 0.999))
    for gradient in (1.0, *[0.0] * 300):
        param.grad = torch.full_like(param, gradient)
        optimizer.step()
    moment = optimizer.state[param]["exp_avg_sq"].double()
    standard_error = moment.std() / len(moment) ** 0.5
    assert 0 < standard_error < 1e-6
    assert abs(moment.mean() - 1e-3 * 0.999**300) < 4 * standard_error


@pytest.mark.parametrize("kind", [AdamBf16, SGDBf16])
def test_a_saved_state_goes_on_to_the_same_weights_and_another_seed_to_others(kind):
    whole, resumed, other = params(), params(), params()
    one, two, three = (kind(p, lr=0.1, seed=s) for p, s in ((whole, 3), (resumed, 3), (other, 4)))
    for number in range(2):
        for each in (one, two, three):
            step(each, number)
    file = io.BytesIO()
    torch.save(two.state_dict(), file)
    file.seek(0)
    two = kind(resumed, lr=0.5, seed=3)
    two.load_state_dict(torch.load(file, weights_only=True))
    for number in range(2, 5):
        for each in (one, two, three):
            step(each, number)
    assert all(map(torch.equal, whole, resumed))
    assert not all(map(torch.equal, whole, other))


def engine_of(recipe, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = AdamBf16(model.parameters(), lr=0.01, eps=1e-4, seed=1)
    return Engine(model, optimizer, recipe=recipe, **options)


def train(engine, numbers, *, infinite=False):
    """Take steps; return whether the last one was made."""
    for number in numbers:
        torch.manual_seed(number)
        images = torch.randn(128, 32)
        with engine.autocast():
            loss = engine.model(images * torch.inf if infinite else images).float().square().mean()
        engine.backward(loss)
        result = engine.step()
    return result.stepped


@pytest.mark.parametrize("recipe", ["fp16", "o2"])
def test_a_skipped_step_leaves_state_and_random_numbers_as_they_are(recipe):
    with engine_of(recipe, clip_norm=1.0) as plain, engine_of(recipe, clip_norm=1.0) as skipping:
        train(plain, range(4))
        train(skipping, range(2))
        assert not train(skipping, [2], infinite=True)
        train(skipping, range(2, 4))
        states = [engine.model.state_dict().values() for engine in (plain, skipping)]
        assert all(map(torch.equal, *states))


@pytest.mark.parametrize("recipe", ["o2", "o3", "bf16-sr", "act2"])
def test_a_resumed_engine_goes_on_to_the_same_weights(recipe):
    with engine_of(recipe) as whole:
        train(whole, range(4))
        moments = [
            value.dtype
            for state in whole.optimizer.state.values()
            for name, value in state.items()
            if name != "step"
        ]
        assert set(moments) == {torch.bfloat16}
        expected = [value.clone() for value in whole.model.state_dict().values()]
    with engine_of(recipe) as before:
        train(before, range(2))
        model, state = before.model.state_dict(), before.state_dict()
        with engine_of(recipe) as after:
            after.model.load_state_dict(model)
            after.load_state_dict(state)
            train(after, range(2, 4))
            assert all(map(torch.equal, expected, after.model.state_dict().values()))


def test_weights_in_half_are_rounded_once_from_fp32():
    (weight,) = [nn.Parameter(torch.ones(4, dtype=torch.float16))]
    optimizer = SGDBf16([weight], lr=1.0, momentum=0.5)
    weight.grad = torch.full_like(weight, 2.0**-11)
    optimizer.step()  # 1 - 2**-11 is a number of fp16 just below 1
    assert weight.tolist() == [1 - 2.0**-11] * 4


def test_what_has_no_moment_in_bf16_is_refused():
    with pytest.raises(TypeError, match=r"a parameter of shape \[2\] is torch.complex64"):
        AdamBf16([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(ValueError, match=r"momentum is 0\.0, .*write momentum=0\.9"):
        SGDBf16(params(), momentum=0.0)
