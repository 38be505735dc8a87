import pytest
from pydantic import TypeAdapter, ValidationError

from halfstep.errors import UserError
from halfstep.train.config.optimizer import (
    AdamConfig,
    AdamWConfig,
    LowBitAdamConfig,
    LowBitAdamWConfig,
    OptimizerConfig,
    SgdConfig,
    TimmOptimizerConfig,
)

OPTIMIZER = TypeAdapter(OptimizerConfig)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"name": "sgd"}, SgdConfig),
        ({"name": "adam"}, AdamConfig),
        ({"name": "adamw"}, AdamWConfig),
        ({"name": "adamw", "state": "bf16"}, AdamWConfig),
        ({"name": "adam8bit"}, LowBitAdamConfig),
        ({"name": "adamfp8"}, LowBitAdamConfig),
        ({"name": "adamw4bit"}, LowBitAdamWConfig),
        ({"name": "lamb", "lr": 0.1}, TimmOptimizerConfig),
    ],
)
def test_name_decides_which_settings_there_are(given, kind):
    built = OPTIMIZER.validate_python(given)
    assert type(built) is kind
    assert OPTIMIZER.validate_python(built.model_dump(mode="json")) == built
    assert OPTIMIZER.validate_python(built) is built


def test_timms_optimizers_have_no_learning_rate_of_their_own(tiny):
    with pytest.raises(UserError, match=r": optimizer\.lr is missing; write it in the config"):
        tiny("optimizer={name: lamb}")


@pytest.mark.parametrize("key", ["lr", "weight_decay", "opt", "params"])
def test_what_has_a_field_is_refused_among_the_arguments(key):
    with pytest.raises(ValidationError, match=f"args holds '{key}'"):
        TimmOptimizerConfig(name="lamb", lr=0.1, args={key: 1})


def test_a_misspelt_name_is_not_mistaken_for_timms_in_silence(tiny):
    with pytest.raises(UserError, match=r"'sdg' is taken for one of them.* did you mean 'sgd'"):
        tiny("optimizer={name: sdg}")


def test_a_state_in_bf16_needs_a_state(tiny):
    with pytest.raises(UserError, match=r"state is 'bf16' but momentum is 0, .*; write momentum"):
        tiny("optimizer={name: sgd, momentum: 0, state: bf16}")
