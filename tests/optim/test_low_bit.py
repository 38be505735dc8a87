"""torchao's optimizers as halfstep has them: the same steps, states of plain tensors."""

import io

import pytest
import torch
from torch import nn

import warm
from halfstep.engine import Engine
from halfstep.optim.low_bit import KINDS, low_bit_adam

torchao_optim = pytest.importorskip("torchao.optim", reason="needs torchao")


def params():
    """Two that are large enough for few bits, and one that stays in fp32."""
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size)) for size in ((64, 64), (4, 32, 8, 8), (7,))]


def step(optimizer, number, *, eagerly=False):
    torch.manual_seed(number)
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.randn(param.shape)
    with torch.compiler.set_stance("force_eager" if eagerly else "default"):
        optimizer.step()


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", KINDS)
def test_steps_are_torchaos_and_a_saved_state_goes_on_to_the_same_weights(name):
    theirs, ours, resumed = params(), params(), params()
    settings = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1}
    reference = getattr(torchao_optim, KINDS[name])(theirs, **settings)
    whole, first = (low_bit_adam(name)(each, **settings) for each in (ours, resumed))
    for number in range(2):
        step(reference, number, eagerly=True)
        step(whole, number)
        step(first, number)
    saved = through_a_file(first.state_dict())
    bits = {"adam4bit": 4, "adamw4bit": 4}.get(name, 8)
    assert saved["state"][0]["exp_avg"]["codes"].nbytes == 64 * 64 * bits / 8
    assert saved["state"][2]["exp_avg"].dtype == torch.float32
    second = low_bit_adam(name)(resumed, lr=0.7)
    second.load_state_dict(saved)
    for number in range(2, 4):
        step(reference, number, eagerly=True)
        step(whole, number)
        step(second, number)
    assert all(map(torch.equal, theirs, ours))
    assert all(map(torch.equal, ours, resumed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_moments_of_half_parameters_are_in_fp32(dtype):
    param = nn.Parameter(torch.ones(8, dtype=dtype))
    param.grad = torch.full((8,), 1e-4, dtype=dtype)
    optimizer = low_bit_adam("adam8bit")([param], lr=0.1)
    optimizer.step()
    state = optimizer.state[param]
    # 0.001 * 1e-4**2 is below fp16's smallest subnormal number.
    expected = 0.001 * param.grad.double() ** 2
    torch.testing.assert_close(state["exp_avg_sq"].double(), expected, rtol=1e-6, atol=0.0)
    resumed = low_bit_adam("adam8bit")([param], lr=0.1)
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].to(dtype)
    resumed.load_state_dict(through_a_file(saved))
    assert {each.dtype for each in resumed.state[param].values()} == {torch.float32}


IMPORTING = """
import sys
before = "torchao" in sys.modules
from halfstep.optim.low_bit import low_bit_adam
low_bit_adam("adam8bit")
print("imported before" if before else "imported now")
"""


def test_importing_torchao_prints_no_warning_of_torch():
    ended = warm.run(warm.program, IMPORTING)
    assert (ended.code, ended.out) == (0, "imported now\n")
    assert "KernelPreference" not in ended.err


def test_a_state_of_other_bits_is_refused():
    eight, four = (low_bit_adam(name)(params()) for name in ("adam8bit", "adam4bit"))
    for each in (eight, four):
        step(each, 0)
    with pytest.raises(ValueError, match="exp_avg is of other bits than Adam4bit keeps"):
        four.load_state_dict(eight.state_dict())


def test_parameters_that_are_not_computed_with_in_fp32_are_refused():
    with pytest.raises(TypeError, match=r"Adam8bit computes in fp32, .* is torch\.float64; write"):
        low_bit_adam("adam8bit")([nn.Parameter(torch.zeros(3, dtype=torch.float64))])


@pytest.mark.parametrize("recipe", ["fp16", "o2", "o3", "act4"])
def test_a_resumed_engine_goes_on_to_the_same_weights(recipe):
    def engine():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
        optimizer = low_bit_adam("adamw8bit")(model.parameters(), lr=0.01, eps=1e-4)
        return Engine(model, optimizer, recipe=recipe, clip_norm=1.0)

    def train(engine, numbers):
        for number in numbers:
            torch.manual_seed(number)
            with engine.autocast():
                loss = engine.model(torch.randn(128, 32)).float().square().mean()
            engine.backward(loss)
            engine.step()

    with engine() as whole, engine() as before:
        train(whole, range(4))
        train(before, range(2))
        model = through_a_file(before.model.state_dict())
        state = through_a_file(before.state_dict())
        with engine() as after:
            after.model.load_state_dict(model)
            after.load_state_dict(state)
            train(after, range(2, 4))
            found = [each.model.state_dict().values() for each in (whole, after)]
            assert all(map(torch.equal, *found))
