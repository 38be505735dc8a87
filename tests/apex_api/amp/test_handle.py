"""`scale_loss`, `disable_casts` and the handles."""

import pytest
import torch
from torch.optim import SGD

from halfstep.apex import amp

from .tiny import Weights, backward, overflow, scale

INF = torch.tensor(float("inf"))


def start(level="O2", *values, lr=0.5, **options):
    models = [Weights(value) for value in values or (1.0,)]
    optimizers = [SGD(model.parameters(), lr) for model in models]
    settings = {"opt_level": level, "verbosity": 1, "max_loss_scale": 2.0**10} | options
    amp.initialize(models, optimizers, **settings)
    return [*models, *optimizers]


def grads(optimizer):
    return [param.grad.item() for param in amp.master_params(optimizer)]


def test_not_initialised_is_an_error():
    with (
        pytest.raises(RuntimeError, match=r"internal Amp state has not been initialized.*must be"),
        amp.scale_loss(torch.ones(()), None),
    ):
        pass


def test_an_optimizer_from_elsewhere_is_an_error():
    start("O2")
    with pytest.raises(RuntimeError, match=r"a SGD that amp.initialize has not returned"):
        backward(torch.ones(()), SGD(Weights(1.0).parameters(), 0.1))


def test_an_unknown_loss_id_is_an_error():
    model, optimizer = start("O2", num_losses=2)
    with pytest.raises(IndexError, match=r"loss_id is 2.*allowed: 0 to 1.*num_losses=3"):
        backward(model(torch.ones(())), optimizer, loss_id=2)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("loss_scale", [1.0, 128.0, "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_loss_is_scaled_in_fp32(level, loss_scale, dtype):
    _, optimizer = start(level, loss_scale=loss_scale)
    loss = torch.tensor([600.0, 2.0], dtype=dtype)
    with amp.scale_loss(loss, optimizer) as scaled:
        factor = 1024.0 if loss_scale == "dynamic" else loss_scale
        assert torch.equal(scaled, torch.tensor([600.0, 2.0]) * factor)
        assert scaled.dtype == torch.float32


def test_nothing_is_asked_of_an_optimizer_where_nothing_is_scaled():
    start("O0")
    with amp.scale_loss(torch.ones(()).half(), None) as scaled:
        assert scaled.dtype == torch.float32


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("loss_scale", [1.0, 128.0, "dynamic"])
def test_gradients_leave_true(level, loss_scale):
    model, optimizer = start(level, loss_scale=loss_scale)
    backward(model(torch.tensor(3.0)), optimizer)
    assert grads(optimizer) == [3.0]
    scaled = 3.0 * (1024.0 if loss_scale == "dynamic" else loss_scale)
    assert model.weight.grad.item() == (scaled if level == "O2" else 3.0)
    backward(model(torch.tensor(4.0)), optimizer)
    assert grads(optimizer) == [7.0]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_losses_with_scales_of_their_own_add_up(level):
    model, optimizer = start(level, num_losses=2, loss_scale="dynamic")
    for index, value in enumerate((4.0, 16.0)):
        amp._amp_state.loss_scalers[index]._loss_scale = value
    backward(model(torch.tensor(3.0)), optimizer, loss_id=0)
    backward(model(torch.tensor(5.0)), optimizer, loss_id=1)
    assert grads(optimizer) == [8.0]
    optimizer.step()
    assert model.weight.item() == 1 - 0.5 * 8
    optimizer.zero_grad()
    backward(model(torch.tensor(2.0)), optimizer, loss_id=1)
    assert grads(optimizer) == [2.0]


def test_a_loss_may_reach_several_optimizers():
    one, two, first, second = start("O2", 1.0, 2.0)
    backward(one(torch.tensor(1.0)) + two(torch.tensor(3.0)), [first, second])
    assert (grads(first), grads(second)) == ([1.0], [3.0])


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_an_overflow_skips_one_step_and_halves_the_scale(level, capsys):
    model, optimizer = start(level, loss_scale="dynamic")
    capsys.readouterr()
    overflow(model, optimizer)
    assert capsys.readouterr().out == (
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 512.0\n"
    )
    assert scale() == 512.0
    assert model.weight.item() == 1.0
    assert all(m.grad is None for m in optimizer._amp_stash.all_fp32_from_fp16_params)
    optimizer.zero_grad()
    backward(model(torch.tensor(1.0)), optimizer)
    optimizer.step()
    assert model.weight.item() == 0.5
    assert capsys.readouterr().out == ""


def test_a_static_scale_never_skips():
    model, optimizer = start("O2", loss_scale=128.0)
    overflow(model, optimizer)
    assert scale() == 128.0
    assert model.weight.item() == -float("inf")


def test_verbosity_zero_skips_in_silence(capsys):
    model, optimizer = start("O2", verbosity=0)
    overflow(model, optimizer)
    assert model.weight.item() == 1.0
    assert capsys.readouterr().out == ""


def test_every_optimizer_listed_skips_and_no_other(capsys):
    one, two, three, *optimizers = start("O2", 1.0, 1.0, 1.0, num_losses=2)
    capsys.readouterr()
    backward(one(INF) + two(torch.tensor(1.0)), optimizers[:2], loss_id=1)
    backward(three(torch.tensor(1.0)), optimizers[2], loss_id=0)
    for optimizer in optimizers:
        optimizer.step()
    assert [m.weight.item() for m in (one, two, three)] == [1.0, 1.0, 0.5]
    assert capsys.readouterr().out.count("loss scaler 1 reducing loss scale to 512.0") == 2
    assert (scale(0), scale(1)) == (1024.0, 512.0)


def test_the_first_of_two_overflows_is_named_with_the_scale_of_the_step(capsys):
    model, optimizer = start("O1")
    capsys.readouterr()
    backward(model(INF), optimizer)
    backward(model(INF), optimizer)
    optimizer.step()
    assert "loss scaler 0 reducing loss scale to 256.0\n" in capsys.readouterr().out


def test_the_first_of_two_losses_is_named(capsys):
    model, optimizer = start("O2", num_losses=2)
    capsys.readouterr()
    backward(model(INF), optimizer, loss_id=0)
    backward(model(INF), optimizer, loss_id=1)
    optimizer.step()
    assert "loss scaler 0 reducing loss scale to 512.0\n" in capsys.readouterr().out
    assert (scale(0), scale(1)) == (512.0, 512.0)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_gradient_outlives_a_loss_that_does_not_reach_it(level):
    one, two = Weights(1.0), Weights(1.0)
    optimizer = SGD([one.weight, two.weight], 0.5)
    amp.initialize([one, two], optimizer, opt_level=level, loss_scale=8.0, verbosity=0)
    backward(one(torch.tensor(3.0)), optimizer)
    backward(two(torch.tensor(4.0)), optimizer)
    assert grads(optimizer) == [3.0, 4.0]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_delayed_unscaling_accumulates_scaled_gradients(level):
    model, optimizer = start(level)
    backward(model(torch.tensor(3.0)), optimizer, delay_unscale=True)
    assert model.weight.grad.item() == 3 * 1024.0
    assert optimizer._amp_stash.params_have_scaled_gradients
    backward(model(torch.tensor(4.0)), optimizer, delay_unscale=True)
    backward(model(torch.tensor(5.0)), optimizer)
    assert grads(optimizer) == [12.0]
    assert not optimizer._amp_stash.params_have_scaled_gradients


def test_a_delayed_overflow_check_neither_skips_nor_backs_off():
    model, optimizer = start("O2")
    backward(model(INF), optimizer, delay_overflow_check=True)
    assert scale() == 1024.0
    assert amp._amp_state.loss_scalers[0]._unskipped == 0
    assert amp._amp_state.loss_scalers[0].update_scale()  # the program's own check
    assert scale() == 512.0
    optimizer.step()
    assert model.weight.item() == -float("inf")


def test_an_error_inside_leaves_no_stale_casts():
    model, optimizer = start("O1")
    torch.mv(torch.ones(1, 1), model.weight)
    assert amp._amp_state.handle.cache
    with pytest.raises(KeyError), amp.scale_loss(model(torch.ones(())), optimizer):
        raise KeyError
    assert not amp._amp_state.handle.cache


def test_sparse_gradients_are_unscaled():
    model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    amp.initialize(model, optimizer, opt_level="O1", loss_scale=8.0, verbosity=0)
    backward(model(torch.tensor([1, 1])).sum(), optimizer)
    assert model.weight.grad.to_dense()[1].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("inside", [None, KeyError])
def test_casts_come_back_however_disable_casts_is_left(inside):
    start("O1")
    half = lambda: torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype  # noqa: E731
    try:
        with amp.disable_casts():
            assert half() == torch.float32
            with amp.disable_casts():
                pass
            assert half() == torch.float32
            if inside:
                raise inside
    except KeyError:
        pass
    assert half() == torch.float16


def test_disable_casts_is_harmless_without_any():
    with amp.disable_casts():
        assert torch.ones(1).dtype == torch.float32


def test_an_optimizer_steps_without_casts_under_o1():
    formats = []

    class Norm(SGD):
        def step(self, closure=None):
            formats.append(torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)

    model = Weights(1.0)
    optimizer = Norm(model.parameters(), 0.1)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    optimizer.step()
    assert formats == [torch.float32]


def test_the_handle_of_init():
    own = torch.mm
    handle = amp.init(verbose=False)
    assert amp._amp_state.handle is handle
    assert (handle.is_active(), handle.has_cache, handle.verbose) == (True, True, False)
    weight = torch.nn.Parameter(torch.ones(1, 1))
    torch.mm(weight, weight)
    assert handle.cache[weight].dtype == torch.float16
    handle.remove_cache(weight)
    assert weight not in handle.cache
    torch.mm(weight, weight)
    handle._clear_cache()
    assert not handle.cache
    with handle._disable_casts():
        assert not handle.is_active()
    assert handle.is_active()
    with pytest.raises(RuntimeError, match="The old Amp API is no longer supported"):
        handle.scale_loss(torch.ones(1), None)
    handle._deactivate()
    assert torch.mm is own


def test_casts_are_not_kept_without_caching():
    handle = amp.init(enable_caching=False)
    weight = torch.nn.Parameter(torch.ones(1, 1))
    assert torch.mm(weight, weight).dtype == torch.float16
    assert not handle.has_cache
    assert not handle.cache


def test_verbose_casts_are_printed(capsys):
    amp.init(verbose=True)
    torch.mm(torch.ones(1, 1), torch.ones(1, 1))
    torch.exp(torch.ones(1).half())
    assert capsys.readouterr().out.split("\n")[:3] == [
        "Float->Half (mm)",
        "Float->Half (mm)",
        "Half->Float (exp)",
    ]


def test_the_handle_of_a_disabled_init_does_nothing():
    own = torch.mm
    handle = amp.init(enabled=False)
    assert torch.mm is own
    assert (handle.is_active(), handle.has_cache, handle.verbose) == (False, False, False)
    loss = torch.ones(())
    with handle.scale_loss(loss, None) as same, handle._disable_casts():
        assert same is loss
    handle._clear_cache()
    handle._deactivate()
    model = Weights(1.0)
    optimizer = handle.wrap_optimizer(SGD(model.parameters(), 0.5))
    with optimizer.scale_loss(model(torch.ones(()))) as scaled:
        scaled.backward()
    optimizer.step()
    assert model.weight.item() == 0.5
