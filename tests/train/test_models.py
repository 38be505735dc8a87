import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.config import ModelConfig
from halfstep.train.models import build, resolve

SMALL = {"layers": [1, 1, 1, 1], "channels": [8, 8, 8, 8]}


def make(name, args=None, classes=7, shape=(1, 16, 16)):
    return build(ModelConfig(name=name, args=args or {}), classes=classes, image_shape=shape)


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
        ("resnet81", {}, "allowed: a classifier of timm or torchvision; did you mean 'resnet"),
        ("timm:resnet81", {}, "allowed: a classifier of timm; did you mean 'resnet"),
        ("keras:resnet18", {}, "allowed prefixes: timm, torchvision; write timm:resnet18"),
        ("fcn_resnet50", {}, "model.name is 'fcn_resnet50'"),
        ("timm:resnet18", {"layer": 1}, "timm's resnet18 refuses: .*unexpected keyword argument"),
        ("torchvision:alexnet", {"layers": 1}, "torchvision's alexnet refuses"),
        ("torchvision:alexnet", {}, "cannot take 1x16x16 images"),
        ("timm:resnet18", {"layers": [1, 1, 1]}, "cannot take 1x16x16 images"),
        ("timm:resnet18", {"num_classes": 3, **SMALL}, "does not return 7 logits an image"),
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
