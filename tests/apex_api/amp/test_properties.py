"""The options of each level, and which overrides contradict them."""

import pytest
import torch

from halfstep.apex.amp import _amp_state
from halfstep.apex.amp.properties import Properties, properties_for

TABLE = {
    "O0": (torch.float32, False, None, False, 1.0),
    "O1": (None, True, None, None, "dynamic"),
    "O2": (torch.float16, False, True, True, "dynamic"),
    "O3": (torch.float16, False, False, False, 1.0),
}
NAMES = (
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
)


@pytest.mark.parametrize("level", TABLE)
def test_each_level_sets_its_row(level):
    properties = properties_for(level, {})
    assert tuple(getattr(properties, name) for name in NAMES) == TABLE[level]
    assert properties.enabled is True
    assert properties.opt_level == level
    assert properties.options["opt_level"] == level


@pytest.mark.parametrize(
    ("level", "name", "given", "expected"),
    [
        ("O0", "loss_scale", "dynamic", "dynamic"),
        ("O1", "loss_scale", "128.0", 128.0),
        ("O2", "loss_scale", 64, 64.0),
        ("O1", "cast_model_type", False, False),
        ("O1", "cast_model_type", torch.float32, torch.float32),
        ("O2", "cast_model_type", torch.bfloat16, torch.bfloat16),
        ("O1", "patch_torch_functions", False, False),
        ("O2", "keep_batchnorm_fp32", "False", False),
        ("O3", "keep_batchnorm_fp32", "True", True),
        ("O3", "keep_batchnorm_fp32", True, True),
        ("O3", "master_weights", True, True),
        ("O2", "master_weights", False, False),
    ],
)
def test_an_override_replaces_one_option(level, name, given, expected):
    properties = properties_for(level, {name: given})
    assert getattr(properties, name) is expected or getattr(properties, name) == expected
    others = {n: v for n, v in zip(NAMES, TABLE[level], strict=True) if n != name}
    assert {n: getattr(properties, n) for n in others} == others


@pytest.mark.parametrize(
    ("level", "name", "given", "error", "said"),
    [
        ("02", "loss_scale", None, RuntimeError, "Unexpected optimization level 02.*'O2'"),
        ("o1", "loss_scale", None, RuntimeError, "Unexpected optimization level o1.*'O1'"),
        ("O9", "loss_scale", None, RuntimeError, "Options are 'O0', 'O1', 'O2', 'O3'"),
        ("O1", "cast_model_type", torch.float16, RuntimeError, "O1 inserts casts around Torch"),
        ("O2", "patch_torch_functions", True, RuntimeError, "should only be set by selecting"),
        ("O1", "keep_batchnorm_fp32", True, RuntimeError, "With opt_level O1, batchnorm"),
        ("O1", "keep_batchnorm_fp32", False, RuntimeError, "keep_batchnorm_fp32 should be None"),
        ("O1", "keep_batchnorm_fp32", "False", RuntimeError, "keep_batchnorm_fp32 was False"),
        ("O2", "keep_batchnorm_fp32", "yes", AssertionError, "must be a boolean, the string"),
        ("O2", "keep_batchnorm_fp32", 1, AssertionError, "found keep_batchnorm_fp32=1"),
        ("O1", "master_weights", False, RuntimeError, "doesn't make sense to use master_weights"),
        ("O2", "loss_scale", "large", ValueError, "'large'; allowed: 'dynamic', or a positive"),
        ("O2", "loss_scale", 0, ValueError, "positive number"),
        ("O2", "loss_scale", "nan", ValueError, "positive number"),
    ],
)
def test_contradictions_are_refused(level, name, given, error, said):
    with pytest.raises(error, match=said):
        properties_for(level, {name: given})


def test_a_hard_override_prints_instead(capsys):
    _amp_state.hard_override = True
    assert properties_for("O1", {"master_weights": True}).master_weights is True
    assert capsys.readouterr().out.startswith("Warning:  It doesn't make sense")


def test_other_attributes_are_plain_and_unknown_ones_missing():
    properties = Properties()
    properties.note = 1
    assert properties.note == 1
    assert "note" not in properties.options
    with pytest.raises(AttributeError, match="no attribute 'fused'"):
        _ = properties.fused
