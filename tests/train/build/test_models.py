import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import timm
import torch
import torchvision
from torch import nn

from halfstep.engine import Engine
from halfstep.errors import UserError
from halfstep.train.build.models import build, compiled, resolve
from halfstep.train.config.model import ModelConfig

SMALL = {"layers": [1, 1, 1, 1], "channels": [8, 8, 8, 8]}


def make(name, args=None, classes=7, shape=(1, 16, 16), **fields):
    config = ModelConfig(name=name, args=args or {}, **fields)
    return build(config, classes=classes, image_shape=shape)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own in the working directory."""
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def small(num_classes, in_chans, width=4):\n"
        "    pool, flat = nn.AdaptiveAvgPool2d(1), nn.Flatten()\n"
        "    return nn.Sequential(nn.Conv2d(in_chans, width, 3), pool, flat, "
        "nn.Linear(width, num_classes))\n"
        "def nothing(**given): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_models", None)


@pytest.mark.parametrize(
    ("name", "args"),
    [("timm:resnet18", SMALL), ("resnet18", SMALL), ("torchvision:squeezenet1_1", {})],
)
@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (4, 32, 32)])
def test_model_takes_the_datas_channels_and_gives_its_classes(name, args, shape):
    model = make(name, args, shape=shape).eval()
    assert model(torch.zeros(2, *shape)).shape == (2, 7)


def test_bare_name_is_looked_up_in_timm_first_and_then_in_torchvision():
    assert resolve("resnet18") == ("timm", "resnet18")
    assert resolve("torchvision:resnet18") == ("torchvision", "resnet18")
    assert resolve("shufflenet_v2_x0_5") == ("torchvision", "shufflenet_v2_x0_5")


def test_arguments_reach_the_constructor():
    assert make("timm:resnet18", SMALL).conv1.out_channels == 64
    assert make("timm:resnet18", SMALL).fc.in_features == 8
    assert (
        make("torchvision:squeezenet1_1", {"dropout": 0.25}, shape=(1, 32, 32)).classifier[0].p
        == 0.25
    )


def test_torchvisions_own_initialisation_survives_another_number_of_channels():
    torch.manual_seed(0)
    rgb = make("torchvision:squeezenet1_1", shape=(3, 32, 32)).features[0]
    torch.manual_seed(0)
    grey = make("torchvision:squeezenet1_1", shape=(1, 32, 32)).features[0]
    assert torch.equal(grey.weight, rgb.weight[:, :1])
    assert torch.equal(grey.bias, rgb.bias)
    assert grey.stride == rgb.stride


def test_trying_a_model_on_an_image_leaves_no_trace():
    torch.manual_seed(0)
    model = make("timm:resnet18", SMALL)
    assert model.training
    assert int(model.bn1.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("resnet81", {}, "a classifier of timm or torchvision or halfstep; did you mean 'resnet"),
        ("timm:resnet81", {}, "allowed: a classifier of timm; did you mean 'resnet"),
        (
            "keras:resnet18",
            {},
            "allowed prefixes: timm, torchvision, halfstep, import; write timm:resnet18",
        ),
        ("fcn_resnet50", {}, "model.name is 'fcn_resnet50'"),
        ("timm:resnet18", {"layer": 1}, "timm's resnet18 refuses: .*unexpected keyword argument"),
        ("torchvision:alexnet", {"layers": 1}, "torchvision's alexnet refuses"),
        ("torchvision:alexnet", {}, "cannot take 1x16x16 images"),
        ("timm:resnet18", {"layers": [1, 1, 1]}, "cannot take 1x16x16 images"),
        ("timm:resnet18", {"num_classes": 3, **SMALL}, "does not return 7 logits per image"),
        (
            "torchvision:googlenet",
            {"init_weights": False},
            "write --options model.args.aux_logits=false",
        ),
    ],
)
def test_model_that_cannot_be_had_is_refused_in_one_line(name, args, said):
    with pytest.raises(UserError, match=said) as caught:
        make(name, args)
    assert "\n" not in str(caught.value)


def test_layer_of_no_channels_is_refused_without_a_warning_before_it(recwarn):
    with pytest.raises(UserError, match="cannot take 1x16x16 images"):
        make("timm:resnet18", {**SMALL, "channels": [0, 0, 0, 0]})
    assert not recwarn.list


def test_model_of_ones_own_is_called_with_classes_channels_and_arguments(own):
    model = make("import:own_models:small", {"width": 6})
    assert model[0].weight.shape == (6, 1, 3, 3)
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("import:own_models:smal", {}, "did you mean 'small'"),
        ("import:own_models:small", {"depth": 2}, "failed: TypeError: .*depth"),
        ("import:own_models:nothing", {}, "returned a int, not a torch.nn.Module"),
    ],
)
def test_model_of_ones_own_that_fails_is_one_line(own, name, args, said):
    with pytest.raises(UserError, match=said):
        make(name, args)


def test_weights_of_a_file_are_loaded_unless_a_checkpoint_follows(tmp_path):
    torch.manual_seed(1)
    saved = make("timm:resnet18", SMALL)
    torch.save(saved.state_dict(), tmp_path / "w.pth")
    config = ModelConfig(name="timm:resnet18", args=SMALL, weights=str(tmp_path / "w.pth"))
    loaded = build(config, classes=7, image_shape=(1, 16, 16))
    assert torch.equal(loaded.fc.weight, saved.fc.weight)
    other = build(config, classes=7, image_shape=(1, 16, 16), initial_weights=False)
    assert not torch.equal(other.fc.weight, saved.fc.weight)


def test_published_weights_of_torchvision_fit_but_for_the_last_layer(monkeypatch, capsys):
    torch.manual_seed(3)
    published = torchvision.models.squeezenet1_1()
    weights = torchvision.models.SqueezeNet1_1_Weights
    monkeypatch.setattr(weights, "get_state_dict", lambda *_, **__: published.state_dict())
    model = make("torchvision:squeezenet1_1", shape=(3, 32, 32), pretrained=True)
    assert torch.equal(model.features[0].weight, published.features[0].weight)
    assert model.classifier[1].weight.shape == (7, 512, 1, 1)
    assert "last layer (classifier.1." in capsys.readouterr().err


def test_pretrained_weights_are_asked_of_timm_and_a_new_last_layer_is_said(monkeypatch, capsys):
    create, asked = timm.create_model, []

    def fake(name, *, pretrained=False, **given):
        asked.append(pretrained)
        model = create(name, **given)
        model.pretrained_cfg["num_classes"] = 1000
        return model

    monkeypatch.setattr(timm, "create_model", fake)
    make("timm:resnet18", SMALL, pretrained=True)
    assert any(asked)
    said = capsys.readouterr().err
    assert "resnet18's weights are of 1000 classes: its last layer is initialized randomly" in said


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:squeezenet1_1"])
def test_no_network_is_one_line_that_says_what_to_write(monkeypatch, name):
    def unreachable(*given, **_):
        raise OSError("Network is unreachable\nTry again")

    monkeypatch.setattr(timm.models, "load_pretrained", unreachable)
    monkeypatch.setattr("timm.models._builder.load_pretrained", unreachable)
    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", unreachable)
    with pytest.raises(UserError, match=r"Network is unreachable.*model\.weights=FILE") as caught:
        make(name, shape=(3, 64, 64), pretrained=True)
    assert "\n" not in str(caught.value)


def test_frozen_parts_and_memory_format_are_as_the_config_says():
    model = make("timm:resnet18", SMALL, freeze=("layer1",), channels_last=True)
    assert not any(param.requires_grad for param in model.layer1.parameters())
    assert model.fc.weight.requires_grad
    assert model.layer2[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert (
        not make("timm:resnet18", SMALL)
        .layer2[0]
        .conv1.weight.is_contiguous(memory_format=torch.channels_last)
    )


class Flattened(nn.Linear):
    """A model with a forward of its own: torch 2.11 compiles no `Sequential` in place."""

    def forward(self, images):
        return super().forward(images.flatten(1))


@pytest.mark.parametrize("recipe", ["fp32", "o2", "fp8", "fp8-delayed"])
def test_model_is_compiled_in_place_within_its_engine(recipe, monkeypatch):
    compile_module, seen = nn.Module.compile, []

    def without_a_compiler(module):
        seen.append(module)
        compile_module(module, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", without_a_compiler)
    model = Flattened(16, 16)  # widths that FP8 takes
    images = torch.rand(2, 1, 4, 4)
    with Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe=recipe) as engine:
        plain = engine.model(images)
        assert compiled(engine.model) is model
        torch._dynamo.utils.counters.clear()
        again = engine.model(images)
    assert seen == [model]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert torch.equal(plain, again)


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "bf16", "o2", "half", "bf16-sr", "fp8"])
def test_a_forward_is_compiled_once_to_train_and_once_to_evaluate(recipe):
    compiled_graphs = []

    def compiler(graph, _):
        # Under half parameters the casts around the forward are compiled apart from it.
        calls = [node.target for node in graph.graph.nodes if node.op.startswith("call")]
        if any(target != "to" for target in calls):
            compiled_graphs.append(graph)
        return graph.forward

    model = Flattened(16, 16)
    images = torch.rand(2, 1, 4, 4)
    with Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe=recipe) as engine:
        engine.model.compile(backend=compiler)
        for _ in range(3):
            for _ in range(3):
                with engine.autocast():
                    loss = engine.model(images).float().mean()
                engine.backward(loss)
                engine.step()
            with engine.evaluating():
                engine.model(images)
    assert len(compiled_graphs) == 2


@pytest.mark.parametrize("recipe", ["fp8", "fp8-delayed"])
def test_fp8_trains_compiled_in_a_thread_that_has_computed_nothing_yet(recipe):
    model = nn.Linear(16, 16)

    def trained():
        with Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe=recipe) as engine:
            engine.model.compile(backend="eager")
            for _ in range(3):
                with engine.autocast():
                    loss = engine.model(torch.ones(2, 16)).float().mean()
                engine.backward(loss)
                yield engine.step().stepped

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: list(trained())).result() == [True] * 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pretrained": True, "weights": "w.pth"}, "pretrained is true and weights is given"),
        ({"pretrained": True, "name": "import:a:b"}, "published for timm's and torchvision's"),
    ],
)
def test_config_starts_from_one_thing(fields, said):
    with pytest.raises(ValueError, match=said):
        ModelConfig(**{"name": "resnet18", **fields})
