import sys

import pytest
import timm
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from halfstep.errors import UserError
from halfstep.optim.bf16 import AdamBf16, SGDBf16
from halfstep.optim.low_bit import low_bit_adam
from halfstep.train.build.optim import build_optimizer
from halfstep.train.config.optimizer import (
    AdamConfig,
    AdamWConfig,
    LowBitAdamConfig,
    LowBitAdamWConfig,
    SgdConfig,
    TimmOptimizerConfig,
)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.position = nn.Parameter(torch.ones(1, 4, 1, 1))

    def forward(self, images):
        return self.head((self.norm(self.conv(images)) + self.position).mean((2, 3)))

    def no_weight_decay(self):
        return {"position"}


SETTINGS = {"lr": 0.3, "weight_decay": 0.1, "decay_norms_and_biases": True}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("config", "kind", "wanted"),
    [
        (
            SgdConfig(name="sgd", momentum=0.8, nesterov=True, **SETTINGS),
            SGD,
            {"momentum": 0.8, "nesterov": True},
        ),
        (
            AdamConfig(name="adam", betas=(0.8, 0.9), eps=1e-6, **SETTINGS),
            Adam,
            {"betas": (0.8, 0.9), "eps": 1e-6, "decoupled_weight_decay": False},
        ),
        (
            AdamWConfig(name="adamw", betas=(0.8, 0.9), eps=1e-6, **SETTINGS),
            AdamW,
            {"betas": (0.8, 0.9), "eps": 1e-6},
        ),
    ],
)
def test_settings_reach_torchs_optimizers(config, kind, wanted, fused):
    built = build_optimizer(config, Small(), fused=fused)
    assert type(built) is kind
    assert {"lr": 0.3, "weight_decay": 0.1, "fused": fused, **wanted}.items() <= (
        built.defaults.items()
    )
    assert [len(group["params"]) for group in built.param_groups] == [7]


@pytest.mark.parametrize(
    ("config", "kind", "wanted"),
    [
        (
            SgdConfig(name="sgd", momentum=0.8, nesterov=True, state="bf16", **SETTINGS),
            SGDBf16,
            {"momentum": 0.8, "nesterov": True},
        ),
        (
            AdamConfig(name="adam", betas=(0.8, 0.9), eps=1e-6, state="bf16", **SETTINGS),
            AdamBf16,
            {"betas": (0.8, 0.9), "eps": 1e-6, "decoupled_weight_decay": False},
        ),
        (
            AdamWConfig(name="adamw", state="bf16", **SETTINGS),
            AdamBf16,
            {"decoupled_weight_decay": True},
        ),
    ],
)
def test_settings_reach_optimizers_with_moments_in_bf16(config, kind, wanted):
    built = build_optimizer(config, Small(), fused=True, lr_factor=2.0)
    assert type(built) is kind
    assert {"lr": 0.6, "weight_decay": 0.1, **wanted}.items() <= built.defaults.items()


@pytest.mark.parametrize(
    ("kind", "name", "theirs"),
    [(LowBitAdamConfig, "adam4bit", "Adam4bit"), (LowBitAdamWConfig, "adamwfp8", "AdamWFp8")],
)
def test_settings_reach_torchaos_optimizers(kind, name, theirs):
    torchao_optim = pytest.importorskip("torchao.optim", reason="needs torchao")
    config = kind(name=name, betas=(0.8, 0.9), eps=1e-6, **SETTINGS)
    built = build_optimizer(config, Small(), fused=False)
    assert isinstance(built, getattr(torchao_optim, theirs))
    wanted = {"lr": 0.3, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-6}
    assert wanted.items() <= built.defaults.items()


def test_torchao_that_is_missing_is_one_line_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    low_bit_adam.cache_clear()
    with pytest.raises(UserError, match=r"needs torchao; write pip install 'halfstep\[torchao\]'"):
        build_optimizer(LowBitAdamConfig(name="adam8bit"), Small(), fused=False)


def test_weight_decay_spares_norms_biases_and_what_the_model_excludes():
    model = Small()
    built = build_optimizer(
        SgdConfig(name="sgd", weight_decay=0.1, lr=0.5, momentum=0), model, fused=False
    )
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    built.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"conv.weight", "head.weight"}
    assert torch.allclose(model.conv.weight, before["conv.weight"] * (1 - 0.5 * 0.1))


def test_lr_factor_multiplies_the_learning_rate_of_every_group():
    config = AdamWConfig(name="adamw", lr=0.1)
    built = build_optimizer(config, Small(), fused=False, lr_factor=4.0)
    assert [group["lr"] for group in built.param_groups] == [pytest.approx(0.4)] * 2


def test_frozen_parameters_are_not_the_optimizers():
    model = Small()
    model.conv.requires_grad_(requires_grad=False)
    built = build_optimizer(SgdConfig(name="sgd"), model, fused=False)
    owned = {id(p) for group in built.param_groups for p in group["params"]}
    assert owned == {id(p) for p in model.parameters() if p.requires_grad}


def test_nothing_to_train_is_refused():
    with pytest.raises(UserError, match=r"model\.freeze leaves no parameter to train"):
        build_optimizer(
            SgdConfig(name="sgd"), Small().requires_grad_(requires_grad=False), fused=False
        )


@pytest.mark.parametrize("name", ["lamb", "lars", "lion", "nadamw", "Lamb", "lookahead_radam"])
def test_timms_optimizers_are_had_by_name_and_give_timms_step(name):
    images = torch.rand(2, 1, 8, 8)
    models = []
    for ours in (True, False):
        torch.manual_seed(0)
        model = Small()
        if ours:
            config = TimmOptimizerConfig(name=name, lr=0.02, weight_decay=0.1)
            optimizer = build_optimizer(config, model, fused=False, lr_factor=0.5)
        else:
            optimizer = timm.optim.create_optimizer_v2(model, name, lr=0.01, weight_decay=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().sum().backward()
            optimizer.step()
        models.append(model.state_dict())
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])


def test_arguments_reach_timms_optimizer():
    config = TimmOptimizerConfig(name="lamb", lr=0.1, args={"betas": [0.7, 0.8], "eps": 1e-4})
    group = build_optimizer(config, Small(), fused=False).param_groups[0]
    assert (group["betas"], group["eps"]) == ([0.7, 0.8], 1e-4)


@pytest.mark.parametrize(("name", "fused"), [("adagrad", True), ("nesterov", True)])
def test_torchs_optimizers_under_timms_names_are_fused_too(name, fused):
    config = TimmOptimizerConfig(name=name, lr=0.1)
    assert build_optimizer(config, Small(), fused=fused).defaults["fused"] is fused


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("lam", {}, "optimizer.name is 'lam'; allowed: sgd, adam, adamw, .*did you mean 'lamb'"),
        ("admw", {}, "did you mean 'adamw'"),
        ("lookahead_lam", {}, "optimizer.name is 'lookahead_lam'"),
        ("lamb", {"bettas": 1}, "'lamb' cannot be built with args .*bettas"),
        ("lamb", {"betas": "many"}, "'lamb' cannot be built with args .*many"),
        ("lamb", {"eps": [1]}, "'lamb' cannot be built with args"),
        ("adahessian", {}, "needs second derivatives"),
    ],
)
def test_optimizer_that_cannot_be_had_is_one_line(name, args, said):
    with pytest.raises(UserError, match=said) as caught:
        build_optimizer(TimmOptimizerConfig(name=name, lr=0.1, args=args), Small(), fused=False)
    assert "\n" not in str(caught.value)


def rates(model, built):
    """Return the learning rate and the weight decay of each parameter, by name."""
    names = {id(param): name for name, param in model.named_parameters()}
    return {
        names[id(param)]: (group["lr"], group["weight_decay"])
        for group in built.param_groups
        for param in group["params"]
    }


def test_learning_rate_falls_from_layer_to_layer_and_the_head_has_its_own():
    args = {"embed_dim": 8, "depth": 2, "num_heads": 1, "img_size": 32, "num_classes": 4}
    model = timm.create_model("vit_tiny_patch16_224", **args)
    config = AdamWConfig(name="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5, head_lr=3.0)
    found = rates(model, build_optimizer(config, model, classes=4, fused=False, lr_factor=2.0))
    assert found.keys() == {name for name, _ in model.named_parameters()}
    for name, wanted in (
        ("patch_embed.proj.weight", (0.25, 0.1)),
        ("pos_embed", (0.25, 0.0)),
        ("blocks.0.mlp.fc1.weight", (0.5, 0.1)),
        ("blocks.0.norm1.weight", (0.5, 0.0)),
        ("blocks.1.mlp.fc1.weight", (1.0, 0.1)),
        ("head.weight", (6.0, 0.1)),
        ("head.bias", (6.0, 0.0)),
    ):
        assert found[name] == pytest.approx(wanted), name
    together = AdamWConfig(name="adamw", layer_decay=0.5, decay_norms_and_biases=True)
    found = rates(model, build_optimizer(together, model, fused=False))
    assert {decay for _, decay in found.values()} == {0.01}


def test_head_of_any_model_has_its_own_learning_rate():
    model = Small()
    config = SgdConfig(name="sgd", lr=0.1, head_lr=1.0)
    found = rates(model, build_optimizer(config, model, classes=2, fused=False))
    assert {name for name, (lr, _) in found.items() if lr == 1.0} == {"head.weight", "head.bias"}
    assert {lr for lr, _ in found.values()} == {0.1, 1.0}


def test_layers_or_a_head_that_are_not_known_are_refused():
    for field, said in (("layer_decay", "write model.name=timm"), ("head_lr", "head_lr=null")):
        with pytest.raises(UserError, match=said):
            build_optimizer(SgdConfig(name="sgd", **{field: 0.5}), Small(), fused=False)
