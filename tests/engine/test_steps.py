"""Steps of one model and one optimizer: PyTorch's own loop bit for bit; norms that wait."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW

from halfstep import Engine, step_observer
from halfstep.engine.misuse import EngineWarning

OPTIMIZERS = {
    "sgd": lambda params: SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    # Torch's own way on CUDA; it writes to gradients.
    "nesterov together": lambda params: SGD(
        params, lr=0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "adam": lambda params: Adam(params, lr=0.01, amsgrad=True),
    "adamw fused": lambda params: AdamW(params, lr=0.01, fused=True),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(count=6):
    torch.manual_seed(1)
    return [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(count)]


def trained(name, recipe="fp32", **settings):
    """Return the parameters and norms after a few steps of an engine."""
    model = net()
    norms = []
    optimizer = OPTIMIZERS[name](model.parameters())
    with Engine(model, optimizer, recipe=recipe, **settings) as engine:
        for inputs, labels in batches():
            with engine.autocast():
                loss = cross_entropy(engine.model(inputs).float(), labels)
            engine.backward(loss)
            norms.append(engine.step().grad_norm)
    return [*model.parameters()], norms


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_raw_loop(name):
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    expected = []
    for inputs, labels in batches():
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        grads = torch.cat([param.grad.flatten() for param in model.parameters()])
        expected.append(grads.double().norm().item())
        optimizer.step()
    params, norms = trained(name)
    for mine, its in zip(params, model.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert norms == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adamw fused"])
def test_a_skipped_step_leaves_everything_as_an_engine_that_never_saw_it(name):
    """On the host or on the device: weights, statistics and the optimizer's state."""

    def outcome(skipped):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        recipe = {"base": "fp16", "loss_scale": 8.0}
        with Engine(model, OPTIMIZERS[name](model.parameters()), recipe=recipe) as engine:
            for number, (inputs, labels) in enumerate(batches()):
                if number in {1, 3} and not skipped:
                    continue
                with engine.autocast():
                    loss = cross_entropy(engine.model(inputs), labels)
                engine.backward(loss * (1e38 if number in {1, 3} else 1.0))
                assert engine.step().skipped is (number in {1, 3})
            assert engine.skipped == 2 * skipped
        return model.state_dict()

    mine, expected = outcome(skipped=True), outcome(skipped=False)
    assert all(torch.equal(mine[key], expected[key]) for key in mine)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_shared_scale_comes_after_a_loss_with_one_of_its_own(swapped):
    """Which of two losses has a scale of its own does not matter; scales are powers of two."""

    def parameters(own):
        model = net()
        with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", accumulate=2) as engine:
            for number, (inputs, labels) in enumerate(batches()):
                with engine.autocast():
                    loss = cross_entropy(engine.model(inputs), labels)
                engine.backward(loss, loss_id="own" if number % 2 in own else None)
                engine.step()
        return [*model.parameters()]

    pairs = zip(parameters({1} if swapped else {0}), parameters(set()), strict=True)
    for one, two in pairs:
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)


@pytest.fixture
def engine():
    model = net()
    with Engine(model, SGD(model.parameters(), lr=0.1)) as engine:
        step(engine)  # in the first step the engine learns what the optimizer does to gradients
        yield engine


def step(engine):
    inputs, labels = batches(1)[0]
    with engine.autocast():
        loss = cross_entropy(engine.model(inputs), labels)
    engine.backward(loss)
    grads = [param.grad for param in engine.model.parameters()]
    alive = [weakref.ref(grad) for grad in grads]
    norm = torch.cat([grad.flatten() for grad in grads]).norm().item()
    del grads
    return engine.step(), alive, norm


def test_a_result_that_is_dropped_keeps_no_gradient_alive(engine):
    result, alive, _ = step(engine)
    del result
    gc.collect()
    assert not [each for each in alive if each() is not None]


def test_a_result_that_is_kept_has_the_norm_of_its_own_step(engine):
    result, alive, norm = step(engine)
    later, _, other = step(engine)
    assert not [each for each in alive if each() is not None]  # none beyond the next forward pass
    assert result.grad_norm == pytest.approx(norm)
    assert later.grad_norm == pytest.approx(other)
    assert norm != other


def test_a_result_without_norms_keeps_no_gradient_alive(engine):
    result, alive, _ = step(engine)
    kept = result.without_norms()
    del result
    assert kept.stepped
    assert kept.grad_norm is None
    assert not [each for each in alive if each() is not None]


def test_a_hook_that_changes_gradients_does_not_change_the_norm(engine):
    def halve(optimizer, *_):
        for group in optimizer.param_groups:
            torch._foreach_mul_([param.grad for param in group["params"]], 0.5)

    engine.optimizer.register_step_pre_hook(halve)
    result, _, norm = step(engine)
    assert result.grad_norm == pytest.approx(norm)


def test_two_losses_of_one_step_add_up(engine):
    inputs, labels = batches(1)[0]
    model = engine.model
    cross_entropy(model(inputs), labels).mul(3).backward()
    expected = [param.grad.clone() for param in model.parameters()]
    engine.zero_grad()
    for _ in range(3):
        engine.backward(cross_entropy(model(inputs), labels))
    for param, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(param.grad, grad)


def test_a_parameter_that_is_added_is_trained(engine):
    extra = nn.Parameter(torch.ones(3))
    inputs, labels = batches(1)[0]
    engine.optimizer.add_param_group({"params": [extra]})
    engine.backward(cross_entropy(engine.model(inputs) * extra, labels))
    assert engine.step().stepped
    assert extra.grad is None
    assert not torch.equal(extra, torch.ones(3))


def test_a_backward_that_fails_leaves_no_gradient(engine):
    inputs, labels = batches(1)[0]
    hidden = engine.model[0](inputs)
    hidden.register_hook(lambda _: 1 / 0)
    loss = cross_entropy(engine.model[2](hidden), labels)
    with pytest.raises(ZeroDivisionError):
        engine.backward(loss)
    assert all(param.grad is None for param in engine.model.parameters())
    with pytest.raises(RuntimeError, match=r"without an engine\.backward"):
        engine.step()


def test_autocast_nests_and_decorates(engine):
    @engine.autocast()
    def loss_of(inputs, labels):
        with engine.autocast():
            return cross_entropy(engine.model(inputs), labels)

    for _ in range(2):
        engine.backward(loss_of(*batches(1)[0]))
        assert engine.step().stepped


def test_a_parameter_that_joins_between_backward_and_step_takes_part():
    model, extra = net(), nn.Parameter(torch.ones(2))
    with Engine(model, SGD(model.parameters(), lr=0.1)) as engine:
        # The first step is never plain: it shows that the optimizer leaves gradients as they are.
        (first, its_labels), (inputs, labels) = batches(2)
        engine.backward(cross_entropy(engine.model(first), its_labels))
        engine.step()
        engine.backward(cross_entropy(engine.model(inputs), labels) + extra.sum())
        engine.optimizers[0].param_groups[0]["params"].append(extra)
        grads = torch.cat([param.grad.flatten() for param in (*model.parameters(), extra)])
        norm = engine.step().grad_norm
    assert extra.tolist() == pytest.approx([0.9, 0.9])
    assert extra.grad is None
    assert norm == pytest.approx(grads.norm().item())


def test_what_parameters_that_join_need_is_found_then():
    """Half gradients are unscaled in fp32, where 1e-8 is not zero."""
    model, extra = net(), nn.Parameter(torch.ones(2, dtype=torch.float16))
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16") as engine:
        for inputs, labels in batches(2):
            with engine.autocast():
                loss = cross_entropy(engine.model(inputs), labels)
            engine.backward(loss)
            engine.step()
        engine.optimizer.add_param_group({"params": [extra]})
        with engine.autocast():
            loss = 0 * engine.model(inputs).sum() + 1e-8 * extra.float().sum()
        engine.backward(loss)
        assert engine.step().grad_norm == pytest.approx(1e-8 * 2**0.5, rel=1e-3)


def test_a_backward_inside_autocast_is_told_after_plain_steps():
    model = net()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="bf16") as engine:
        (inputs, labels), (again, its_labels) = batches(2)
        with engine.autocast():
            loss = cross_entropy(engine.model(inputs), labels)
        engine.backward(loss)
        engine.step()
        with engine.autocast(), pytest.warns(EngineWarning, match="autocast"):
            engine.backward(cross_entropy(engine.model(again), its_labels))


@pytest.mark.parametrize("recipe", ["fp32", "o2", "half"])
@pytest.mark.filterwarnings("ignore")
def test_an_observed_step_gives_the_same_bits(recipe):
    """The backward begins with weight and scale; for one who listens, the loss is multiplied."""

    def parameters():
        model = net()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        with Engine(model, optimizer, recipe=recipe, accumulate=3) as engine:
            for number, (inputs, labels) in enumerate(batches()):
                count = 4 - number % 2
                with engine.autocast():
                    loss = cross_entropy(engine.model(inputs[:count]), labels[:count])
                engine.backward(loss, samples=count)
                engine.step()
        return [*model.parameters()]

    mine = parameters()
    listening = step_observer.StepObserver()
    listening.listens = True
    end = step_observer.observe(listening)
    try:
        expected = parameters()
    finally:
        end()
    assert all(torch.equal(one, two) for one, two in zip(mine, expected, strict=True))


def test_a_hook_that_writes_to_the_gradient_of_a_loss_changes_its_own_step_only(engine):
    def gradient(*, hooked):
        inputs, labels = batches(1)[0]
        loss = cross_entropy(engine.model(inputs), labels)
        if hooked:
            loss.register_hook(lambda grad: grad.mul_(2))
        engine.backward(loss)
        found = engine.model[0].weight.grad.clone()
        engine.zero_grad()
        return found

    once, doubled, again = (gradient(hooked=hooked) for hooked in (False, True, False))
    assert torch.equal(doubled, 2 * once)
    assert torch.equal(again, once)


def test_a_dropped_engine_releases_its_parts_without_the_garbage_collector():
    model = net()
    engine = Engine(model, SGD(model.parameters(), lr=0.1), recipe="fp16", clip_norm=1.0)
    step(engine)
    parts = [
        weakref.ref(each) for each in (engine._plan, engine._passes, *engine._assembly.windows)
    ]
    gc.disable()
    try:
        del engine
        assert not [each for each in parts if each() is not None]
    finally:
        gc.enable()
