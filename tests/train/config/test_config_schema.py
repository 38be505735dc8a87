import pytest
from pydantic import BaseModel

from halfstep.errors import UserError
from halfstep.recipe import LossScale
from halfstep.train import config as config_module
from halfstep.train.config import Config
from halfstep.train.config.section import Section


def sections():
    return [
        each
        for each in vars(config_module).values()
        if isinstance(each, type) and issubclass(each, Section) and each is not BaseModel
    ]


@pytest.mark.parametrize("section", sections())
def test_every_field_is_described(section):
    assert [name for name, field in section.model_fields.items() if not field.description] == []


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "optimizer={name: sgd, momentum: 0, nesterov: true}",
            "nesterov is true but momentum is 0",
        ),
        ("device=gpu", "'gpu' is not a device; allowed: auto, cpu, cuda"),
        ("name=../elsewhere", "'../elsewhere' cannot name a folder"),
        ("name=/tmp", "cannot name a folder"),
        ("recipe=fp61", "did you mean 'fp16'"),
        ("recipe=fp16+bf16", "disagree on autocast"),
        ("recipe={autocast: 16}", "recipe field autocast is 16"),
        ("recipe={loss_scale: {init: many}}", "recipe: "),
        ("optimizer.lr=.inf", "optimizer.lr is inf; allowed: a finite number"),
        ("seed=-1", "seed is -1; allowed: greater than or equal to 0"),
    ],
)
def test_values_that_cannot_be_are_refused(tiny, option, said):
    with pytest.raises(UserError, match=f"(?s).*{said.replace('.', '[.]')}"):
        tiny(option)


@pytest.mark.parametrize("name", ["digits", "leaves/resnet18_b16x8", "a.b-c+d"])
def test_names_may_have_folders(tiny, name):
    assert tiny(f"name={name}").name == name


def test_recipe_may_be_a_mapping_on_a_base(tiny):
    built = tiny("recipe={base: fp16, loss_scale: {init: 1024}}").build_recipe()
    assert built.autocast == "fp16"
    assert built.loss_scale == LossScale(init=1024)


def test_betas_are_a_list_in_yaml_and_a_pair_in_python(tiny):
    assert tiny("optimizer={name: adamw, betas: [0.8, 0.9]}").optimizer.betas == (0.8, 0.9)


def test_config_cannot_be_changed_after_it_was_checked(tiny):
    with pytest.raises(ValueError, match="frozen"):
        tiny().epochs = 0
    assert Config.model_config["extra"] == "forbid"
