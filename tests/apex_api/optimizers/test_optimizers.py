"""Every optimizer against its update rule in float64, and Apex's conventions around them."""

import inspect
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep import Engine
from halfstep.apex.optimizers import (
    FusedAdagrad,
    FusedAdam,
    FusedLAMB,
    FusedMixedPrecisionLamb,
    FusedNovoGrad,
    FusedSGD,
)
from halfstep.optim import foreach

from . import reference

ALL = {
    FusedAdam: {},
    FusedSGD: {"lr": 0.1, "momentum": 0.9},
    FusedAdagrad: {},
    FusedLAMB: {},
    FusedNovoGrad: {},
    FusedMixedPrecisionLamb: {},
}


def close(params, expected, tolerance=2e-6):
    for param, value in zip(params, expected, strict=True):
        error = (param.detach().double() - value).abs().max()
        assert error <= tolerance * value.abs().max(), float(error)


BOTH = (True, False)


@pytest.mark.parametrize(("w_mode", "correct", "wd"), list(product(BOTH, BOTH, (0, 0.1))))
def test_adam_follows_its_rule(trajectory, w_mode, correct, wd):
    build = partial(
        FusedAdam, lr=0.05, adam_w_mode=w_mode, bias_correction=correct, weight_decay=wd
    )
    rule = {"lr": 0.05, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": wd, "w_mode": w_mode}
    params, _ = trajectory.run(build)
    close(params, trajectory.reference(reference.adam, correct=correct, **rule))


@pytest.mark.parametrize("build", [FusedAdam, FusedAdagrad, partial(FusedSGD, momentum=0.9)])
def test_half_parameters_are_widened_a_few_at_a_time(build, monkeypatch):
    largest = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            given = args[0] if isinstance(args[0], list) else []
            largest.append(sum(tensor.numel() for tensor in given))
            return func(*args, **kwargs or {})

    def trained():
        generator = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(10, generator=generator).half()) for _ in range(6)]
        optimizer = build(params, lr=0.1)
        largest.clear()
        for _ in range(3):
            for param in params:
                param.grad = torch.randn(10, generator=generator).half()
            with Watch():
                optimizer.step()
        return [param.detach() for param in params]

    together = trained()
    assert max(largest) == 60
    monkeypatch.setattr(foreach, "CHUNK_ELEMENTS", 25)
    assert all(map(torch.equal, trained(), together))
    assert max(largest) == 20


SGD = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True},
]


@pytest.mark.parametrize("settings", SGD, ids=str)
@pytest.mark.parametrize("after", [False, True])
def test_sgd_follows_its_rule(trajectory, settings, after):
    build = partial(FusedSGD, lr=0.1, weight_decay=0.2, wd_after_momentum=after, **settings)
    params, _ = trajectory.run(build)
    rule = {"dampening": 0.0, "nesterov": False} | settings
    close(params, trajectory.reference(reference.sgd, lr=0.1, wd=0.2, after=after, **rule))


@pytest.mark.parametrize("w_mode", [False, True])
def test_adagrad_follows_its_rule(trajectory, w_mode):
    params, _ = trajectory.run(
        partial(FusedAdagrad, lr=0.1, weight_decay=0.2, adagrad_w_mode=w_mode)
    )
    rule = {"lr": 0.1, "eps": 1e-10, "wd": 0.2, "w_mode": w_mode}
    close(params, trajectory.reference(reference.adagrad, **rule))


LAMB = [
    {},
    {"weight_decay": 0.0},
    {"weight_decay": 0.0, "use_nvlamb": True},
    {"adam_w_mode": False, "weight_decay": 0.1},
    {"grad_averaging": False, "bias_correction": False},
    {"max_grad_norm": 1000.0},
]


@pytest.mark.parametrize("optimizer", [FusedLAMB, FusedMixedPrecisionLamb])
@pytest.mark.parametrize("settings", LAMB, ids=str)
def test_lamb_follows_its_rule(trajectory, optimizer, settings):
    params, _ = trajectory.run(partial(optimizer, lr=0.05, **settings))
    expected = reference.lamb(
        trajectory.weights,
        trajectory.grads,
        lr=0.05,
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        wd=settings.get("weight_decay", 0.01),
        w_mode=settings.get("adam_w_mode", True),
        correct=settings.get("bias_correction", True),
        averaging=settings.get("grad_averaging", True),
        max_norm=settings.get("max_grad_norm", 1.0),
        nvlamb=settings.get("use_nvlamb", False),
    )
    close(params, expected)


NOVOGRAD = [
    {},
    {"reg_inside_moment": True},
    {"norm_type": 0},
    {"init_zero": True},
    {"grad_averaging": False, "bias_correction": False},
]


@pytest.mark.parametrize("settings", NOVOGRAD, ids=str)
def test_novograd_follows_its_rule(trajectory, settings):
    params, _ = trajectory.run(partial(FusedNovoGrad, lr=0.05, weight_decay=0.1, **settings))
    expected = trajectory.reference(
        reference.novograd,
        lr=0.05,
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        wd=0.1,
        inside=settings.get("reg_inside_moment", False),
        averaging=settings.get("grad_averaging", True),
        order=settings.get("norm_type", 2),
        init_zero=settings.get("init_zero", False),
        correct=settings.get("bias_correction", True),
    )
    close(params, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_parameters_are_updated_in_fp32_and_rounded_once(trajectory, dtype):
    given = trajectory.rounded(dtype)
    params, optimizer = given.run(partial(FusedAdam, lr=0.05), dtype=dtype, steps=(0, 1))
    assert all(param.dtype == dtype for param in params)
    assert optimizer.state[params[0]]["exp_avg"].dtype == torch.float32
    given.grads = given.grads[:1]
    rule = {"lr": 0.05, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "wd": 0, "w_mode": True}
    for param, value in zip(
        params, given.reference(reference.adam, correct=True, **rule), strict=True
    ):
        torch.testing.assert_close(param.detach(), value.to(dtype), rtol=0, atol=1e-3)
        assert (param == value.to(dtype)).float().mean() > 0.9  # the others are ties of fp32


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (FusedAdam, {"capturable": True, "master_weights": True}),
        (FusedMixedPrecisionLamb, {"reduced_precision_dtype": torch.bfloat16}),
    ],
)
def test_master_weights_keep_updates_that_bf16_cannot_hold(optimizer, settings):
    param = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    trained = optimizer([param], lr=1e-3, weight_decay=0.0, **settings)
    for _ in range(8):
        param.grad = torch.ones_like(param)
        trained.step()
    master = trained.state[param]["master_param"]
    torch.testing.assert_close(master, torch.full((4,), 0.992), rtol=0, atol=1e-4)
    assert torch.equal(param.detach(), master.bfloat16())


def test_the_learning_rate_of_a_capturable_group_is_a_tensor_whenever_it_is_added():
    first, second, third = (nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = FusedAdam([first], lr=0.5, capturable=True)
    optimizer.add_param_group({"params": [second], "lr": 0.25})
    optimizer.add_param_group({"params": [third]})
    rates = [group["lr"] for group in optimizer.param_groups]
    assert all(isinstance(rate, torch.Tensor) for rate in rates)
    assert rates == [0.5, 0.25, 0.5]
    assert rates[0] is not rates[2]


@pytest.mark.parametrize("optimizer", ALL, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_loaded_state_goes_on_bit_for_bit(trajectory, optimizer, dtype):
    build = partial(optimizer, **ALL[optimizer])
    whole, _ = trajectory.run(build, dtype)
    half, saved = trajectory.run(build, dtype, steps=(0, 3))
    resumed = [nn.Parameter(param.detach().clone()) for param in half]
    fresh = build(resumed)
    fresh.load_state_dict(saved.state_dict())
    trajectory.run(build, dtype, steps=(3, 5), params=resumed, optimizer=fresh)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_checkpoints_of_apex_load(trajectory):
    build = partial(FusedAdam, lr=0.05)
    whole, _ = trajectory.run(build)
    half, saved = trajectory.run(build, steps=(0, 3))
    state = saved.state_dict()
    for each in state["state"].values():
        del each["step"]
    state["param_groups"][0]["step"] = 3
    resumed = [nn.Parameter(param.detach().clone()) for param in half]
    fresh = build(resumed)
    fresh.load_state_dict(state)
    trajectory.run(build, steps=(3, 5), params=resumed, optimizer=fresh)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


def test_norms_of_an_apex_checkpoint_of_novograd_load(trajectory):
    build = partial(FusedNovoGrad, lr=0.05)
    whole, _ = trajectory.run(build)
    half, saved = trajectory.run(build, steps=(0, 3))
    state = saved.state_dict()
    norms = torch.stack([each.pop("exp_avg_sq") for each in state["state"].values()])
    state["param_groups"][0]["exp_avg_sq"] = [torch.empty(0), norms]
    resumed = [nn.Parameter(param.detach().clone()) for param in half]
    fresh = build(resumed)
    fresh.load_state_dict(state)
    trajectory.run(build, steps=(3, 5), params=resumed, optimizer=fresh)
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize("optimizer", ALL, ids=lambda cls: cls.__name__)
def test_a_skipped_step_leaves_nothing_behind_under_the_engine(optimizer):
    torch.manual_seed(0)
    plain, skipping = (nn.Linear(3, 2) for _ in range(2))
    skipping.load_state_dict(plain.state_dict())
    images = torch.randn(5, 3)
    outcomes = []
    for model, factors in ((plain, (1.0, 1.0)), (skipping, (float("inf"), 1.0, 1.0))):
        engine = Engine(model, optimizer(model.parameters(), **ALL[optimizer]), recipe="fp16")
        for factor in factors:
            with engine.autocast():
                loss = engine.model(images).square().mean()
            engine.backward(loss * factor)
            engine.step()
        outcomes.append((engine.skipped, engine.optimizer.state_dict()["state"]))
        engine.close()
    assert [skipped for skipped, _ in outcomes] == [0, 1]
    assert torch.equal(plain.weight, skipping.weight)
    first, second = (state[0] for _, state in outcomes)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("optimizer", [FusedAdam, FusedSGD, FusedLAMB])
def test_torchs_grad_scaler_works(optimizer):
    torch.manual_seed(0)
    plain, scaled = (nn.Linear(3, 2) for _ in range(2))
    scaled.load_state_dict(plain.state_dict())
    images = torch.randn(5, 3)
    own = optimizer(plain.parameters(), **ALL[optimizer])
    other = optimizer(scaled.parameters(), **ALL[optimizer])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (1.0, float("nan"), 1.0):
        other.zero_grad()
        scaler.scale(scaled(images).square().mean() * factor).backward()
        scaler.step(other)
        scaler.update()
        if factor == 1.0:
            own.zero_grad()
            plain(images).square().mean().backward()
            own.step()
    assert scaler.get_scale() == 512.0
    torch.testing.assert_close(plain.weight, scaled.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("optimizer", ALL, ids=lambda cls: cls.__name__)
def test_zero_grad_drops_or_fills_as_it_was_told(optimizer):
    param = nn.Parameter(torch.ones(2))
    given = ALL[optimizer]
    accepts = "set_grad_none" in inspect.signature(optimizer).parameters
    trained = optimizer([param], **given, **({"set_grad_none": True} if accepts else {}))
    param.grad = torch.ones(2)
    trained.zero_grad()
    assert param.grad is None
    if accepts:
        trained = optimizer([param], **given, set_grad_none=False)
        param.grad = torch.ones(2)
        trained.zero_grad()
        assert torch.equal(param.grad, torch.zeros(2))


SIGNATURES = {
    FusedAdam: "lr bias_correction betas eps adam_w_mode weight_decay amsgrad set_grad_none "
    "capturable master_weights",
    FusedSGD: "lr momentum dampening weight_decay nesterov wd_after_momentum "
    "materialize_master_grads set_grad_none",
    FusedAdagrad: "lr eps weight_decay set_grad_none adagrad_w_mode",
    FusedLAMB: "lr bias_correction betas eps weight_decay amsgrad adam_w_mode grad_averaging "
    "set_grad_none max_grad_norm use_nvlamb",
    FusedNovoGrad: "lr bias_correction betas eps weight_decay amsgrad reg_inside_moment "
    "grad_averaging norm_type init_zero set_grad_none",
    FusedMixedPrecisionLamb: "lr step bias_correction betas eps weight_decay amsgrad adam_w_mode "
    "grad_averaging max_grad_norm use_nvlamb reduced_precision_dtype",
}


@pytest.mark.parametrize("optimizer", SIGNATURES, ids=lambda cls: cls.__name__)
def test_arguments_are_apexs_in_apexs_order(optimizer):
    names = list(inspect.signature(optimizer).parameters)
    assert names == ["params", *SIGNATURES[optimizer].split()]


@pytest.mark.parametrize(
    "optimizer", [FusedAdam, FusedLAMB, FusedNovoGrad, FusedMixedPrecisionLamb]
)
def test_amsgrad_is_refused(optimizer):
    with pytest.raises(RuntimeError, match="does not support the AMSGrad variant; write"):
        optimizer([nn.Parameter(torch.ones(1))], amsgrad=True)


def test_what_step_no_longer_takes_is_refused_with_what_to_write():
    optimizer = FusedAdam([nn.Parameter(torch.ones(1))])
    assert optimizer.step(grads=None) is None
    with pytest.raises(RuntimeError, match=r"step\(\) takes no scale; write step\(\)"):
        optimizer.step(scale=2.0)
    with pytest.raises(RuntimeError, match=r"write scaler.step\(optimizer\)"):
        optimizer.step(grad_scaler=object())
    with pytest.raises(TypeError, match=r"no argument 'closur'.*did you mean 'closure'"):
        optimizer.step(closur=None)


def test_wrong_settings_are_refused():
    params = [nn.Parameter(torch.ones(1))]
    with pytest.raises(RuntimeError, match="only supported with the capturable version"):
        FusedAdam(params, master_weights=True)
    with pytest.raises(ValueError, match="Invalid momentum value: -1"):
        FusedSGD(params, lr=0.1, momentum=-1)
    with pytest.raises(ValueError, match="Nesterov momentum requires a momentum"):
        FusedSGD(params, lr=0.1, nesterov=True)
    with pytest.raises(RuntimeError, match="norm_type is 1; allowed: 2"):
        FusedNovoGrad(params, norm_type=1)


def test_a_closure_is_called_with_gradients_on():
    param = nn.Parameter(torch.ones(1))
    optimizer = FusedSGD([param], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert float(param) == 0.0


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = FusedAdam(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="FusedAdam does not support sparse gradients"):
        optimizer.step()


def test_sgd_takes_its_rate_from_the_groups_alone():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": params[:1], "lr": 0.25}, {"params": params[1:], "lr": 0.5}]
    optimizer = FusedSGD(groups, momentum=0.1)
    for param in params:
        param.grad = torch.ones(2)
    optimizer.step()
    assert [param[0].item() for param in params] == [0.75, 0.5]
    with pytest.raises(ValueError, match="lr"):
        FusedSGD(params, momentum=0.1)
