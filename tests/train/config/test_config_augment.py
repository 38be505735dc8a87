from dataclasses import replace

import pytest
from pydantic import ValidationError

from halfstep.errors import UserError
from halfstep.train.config.augment import PRESETS, Augmentation, AugmentConfig

OTHER_VALUES = {
    "policy": "trivial",
    "color_jitter": 0.3,
    "crop": "padded",
    "crop_scale": (0.5, 0.75),
    "padding": 0.25,
    "val_crop": 0.9,
    "interpolation": "bicubic",
    "flip": 0.125,
    "randaugment": 3,
    "randaugment_ops": 4,
    "erase": 0.5,
    "mixup": 0.3,
    "cutmix": 0.4,
}
NEEDED = {
    "crop_scale": {"crop": "resized"},
    "padding": {"crop": "padded"},
    "randaugment_ops": {"randaugment": 7},
}
"""What a field has no effect without."""


def test_every_preset_that_a_config_allows_exists():
    allowed = AugmentConfig.model_json_schema()["properties"]["preset"]["enum"]
    assert allowed == list(PRESETS)


def test_default_leaves_images_alone():
    assert AugmentConfig().settings() == Augmentation(crop="none", flip=0, val_crop=1)


@pytest.mark.parametrize("preset", PRESETS)
def test_fields_that_are_not_set_come_from_the_preset(preset):
    assert AugmentConfig(preset=preset).settings() == PRESETS[preset]


@pytest.mark.parametrize("name", Augmentation.__dataclass_fields__)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_field_takes_the_presets_place_for_itself_alone(preset, name):
    value = OTHER_VALUES[name]
    if value == getattr(PRESETS[preset], name):
        value = "none"
    given = {name: value, **NEEDED.get(name, {})}
    if name == "policy" and PRESETS[preset].randaugment:
        given["randaugment"] = 0
    settings = AugmentConfig(preset=preset, **given).settings()
    assert settings == replace(PRESETS[preset], **given)
    assert settings != PRESETS[preset]


def test_zero_switches_off_what_a_preset_switched_on():
    config = AugmentConfig(
        preset="mixed", flip=0.0, randaugment=0, erase=0.0, mixup=0.0, cutmix=0.0
    )
    assert config.settings() == replace(PRESETS["crop-flip"], flip=0)
    assert not config.settings().mixes_labels


@pytest.mark.parametrize("one", ["mixup", "cutmix"])
def test_mixing_images_mixes_labels(one):
    assert AugmentConfig(**{one: 0.2}).settings().mixes_labels


def test_normalisation_is_imagenets_unless_said():
    assert AugmentConfig().normalisation(3) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    grey_mean, grey_std = AugmentConfig().normalisation(1)
    assert grey_mean == pytest.approx([(0.485 + 0.456 + 0.406) / 3])
    assert grey_std == pytest.approx([(0.229 + 0.224 + 0.225) / 3])
    own = AugmentConfig(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert own.normalisation(3) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


def test_normalisation_of_another_number_of_channels_is_refused_with_the_line_to_write():
    with pytest.raises(UserError, match=r"mean has 3 values, but the images have 1 channels"):
        AugmentConfig(mean=(0.1, 0.2, 0.3)).normalisation(1)
    with pytest.raises(UserError, match=r"data.augment.std='\[0.5\]' with 1 values"):
        AugmentConfig(std=(0.1, 0.2, 0.3)).normalisation(1)
    with pytest.raises(UserError, match="mean has 0 values, but the images have 4"):
        AugmentConfig().normalisation(4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"crop_scale": (0.9, 0.5)}, r"crop_scale is \[0.9, 0.5\]; write it as \[0.5, 0.9\]"),
        ({"crop_scale": (0.0, 0.5)}, "greater than 0"),
        ({"flip": 1.5}, "less than or equal to 1"),
        ({"erase": -0.1}, "greater than or equal to 0"),
        ({"randaugment": 31}, "less than or equal to 30"),
        ({"randaugment": 9.5}, "valid integer"),
        ({"mixup": -1.0}, "greater than or equal to 0"),
        ({"val_crop": 0.0}, "greater than 0"),
        ({"padding": 0.75}, "less than or equal to 0.5"),
        ({"crop": "centre"}, "'none', 'resized' or 'padded'"),
        ({"std": (0.0, 1.0, 1.0)}, "not above 0"),
        ({"mean": ()}, r"mean has 0 values; allowed: 1 \(grey\) or 3 \(RGB\)"),
        ({"mean": (0.5, 0.5)}, "mean has 2 values"),
        ({"preset": "autoaugment"}, "'none', 'crop-flip', 'pad-flip', 'randaugment' or 'mixed'"),
        ({"flips": 0.5}, "Extra inputs"),
    ],
)
def test_values_that_cannot_be_are_refused(given, said):
    with pytest.raises(ValidationError, match=said):
        AugmentConfig(**given)


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"preset": "crop-flip", "padding": 0.25}, "crop: padded"),
        ({"crop_scale": [0.5, 1.0]}, "crop: resized"),
        ({"randaugment_ops": 3}, "randaugment: 9"),
    ],
)
def test_a_setting_without_effect_is_refused(given, instead):
    with pytest.raises(ValidationError, match=f"has no effect; write {instead}"):
        AugmentConfig(**given)
