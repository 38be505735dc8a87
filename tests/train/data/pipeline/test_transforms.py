"""Pixels must be those of torchvision's v2 functions, applied by hand."""

import pickle

import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from halfstep.train.config.augment import PRESETS, AugmentConfig
from halfstep.train.data.pipeline import transforms


def picture(height=40, width=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8, generator=generator)
    return functional.resize(noise, [height, width], antialias=True)


def apply(image, *, resolution=32, train=True, seed=0, **fields):
    torch.manual_seed(seed)
    return transforms.build(AugmentConfig(**fields), resolution, train=train)(image)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", [(40, 60), (17, 9), (32, 32), (3, 200)])
@pytest.mark.parametrize("train", [True, False])
def test_result_is_a_uint8_square_of_the_resolution(preset, size, train):
    image = apply(picture(*size), preset=preset, train=train)
    assert image.shape == (3, 32, 32)
    assert image.dtype == torch.uint8


@pytest.mark.parametrize("preset", ["crop-flip", "randaugment", "mixed"])
def test_validation_resizes_and_cuts_out_the_centre(preset):
    resized = functional.resize(picture(), [37], antialias=True)  # 32 / 0.875
    wanted = functional.center_crop(resized, [32, 32])
    assert torch.equal(apply(picture(), preset=preset, train=False), wanted)


@pytest.mark.parametrize("preset", ["none", "pad-flip"])
def test_validation_without_random_crops_keeps_the_shorter_edge_whole(preset):
    wanted = functional.center_crop(functional.resize(picture(), [32], antialias=True), [32, 32])
    assert torch.equal(apply(picture(), preset=preset, train=False), wanted)


def test_validation_and_training_without_augmentation_see_the_same():
    assert torch.equal(apply(picture()), apply(picture(), train=False))


def test_val_crop_decides_how_much_of_the_edge_is_kept():
    resized = functional.resize(picture(), [64], antialias=True)
    wanted = functional.center_crop(resized, [32, 32])
    assert torch.equal(apply(picture(), val_crop=0.5, train=False), wanted)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("crop", ["none", "resized"])
def test_interpolation_is_the_one_asked_for(train, crop):
    whole = {"crop": crop} if crop == "none" else {"crop": crop, "crop_scale": (1, 1)}
    linear, cubic = (
        apply(picture(), **whole, interpolation=each, train=train)
        for each in ("bilinear", "bicubic")
    )
    assert not torch.equal(linear, cubic)
    assert torch.equal(linear, apply(picture(), **whole, train=train))


def test_random_resized_crop_is_torchvisions():
    torch.manual_seed(5)
    wanted = v2.RandomResizedCrop(32, antialias=True)(picture())
    assert torch.equal(apply(picture(), crop="resized", seed=5), wanted)


def test_crop_scale_is_the_part_of_the_area():
    ramp = torch.arange(200, dtype=torch.uint8).expand(200, 200)
    image = torch.stack([ramp, ramp.T, ramp])
    for seed in range(20):
        crop = apply(image, crop="resized", crop_scale=(0.2, 0.3), seed=seed).int()
        wide, tall = (crop[channel].max() - crop[channel].min() for channel in (0, 1))
        # The outermost of 32 rows averages about 1/32 of the crop's height.
        assert 0.17 <= (wide * tall).item() / 200**2 <= 0.3


def test_padded_crop_shifts_by_at_most_the_padding():
    image = picture(32, 32).clamp_(min=1)
    offsets = set()
    for seed in range(60):
        shifted = apply(image, crop="padded", seed=seed)  # 0.125 * 32 = 4 pixels
        rows = torch.nonzero(shifted.sum((0, 2))).flatten()
        columns = torch.nonzero(shifted.sum((0, 1))).flatten()
        offset = (
            rows[0].item() or rows[-1].item() - 31,
            columns[0].item() or columns[-1].item() - 31,
        )
        moved = functional.affine(image, 0.0, [offset[1], offset[0]], 1.0, [0.0, 0.0])
        assert torch.equal(shifted, moved)
        offsets.add(offset)
    for axis in (0, 1):
        assert {offset[axis] for offset in offsets} == set(range(-4, 5))


def test_padding_is_a_part_of_the_resolution():
    image = picture(32, 32).clamp_(min=1)
    black = [(apply(image, crop="padded", padding=0.5, seed=seed) == 0).sum() for seed in range(20)]
    assert max(black) > 3 * 32 * 32 / 2


@pytest.mark.parametrize(("probability", "mirrored"), [(0.0, 0), (1.0, 40), (0.5, 20)])
def test_flip_is_the_share_of_mirrored_images(probability, mirrored):
    plain = apply(picture())
    seen = [apply(picture(), flip=probability, seed=seed) for seed in range(40)]
    count = sum(torch.equal(each, plain.flip(-1)) for each in seen)
    assert count + sum(torch.equal(each, plain) for each in seen) == 40
    assert abs(count - mirrored) <= (10 if probability == 0.5 else 0)


@pytest.mark.parametrize(("magnitude", "operations"), [(9, 2), (20, 1), (5, 3)])
def test_randaugment_is_torchvisions_of_that_magnitude(magnitude, operations):
    reference = v2.RandAugment(operations, magnitude, interpolation=InterpolationMode.BILINEAR)
    cropped = apply(picture())
    for seed in range(10):
        torch.manual_seed(seed)
        wanted = reference(cropped)
        given = apply(picture(), seed=seed, randaugment=magnitude, randaugment_ops=operations)
        assert torch.equal(given, wanted)


@pytest.mark.parametrize(
    ("fields", "reference"),
    [
        ({"policy": "trivial"}, v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)),
        (
            {"policy": "cifar10"},
            v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, interpolation=InterpolationMode.BILINEAR),
        ),
        ({"color_jitter": 0.4}, v2.ColorJitter(0.4, 0.4, 0.4)),
    ],
)
def test_policies_and_colour_jitter_are_torchvisions_in_training_alone(fields, reference):
    cropped = apply(picture())
    for seed in range(6):
        torch.manual_seed(seed)
        wanted = reference(cropped)
        assert torch.equal(apply(picture(), seed=seed, **fields), wanted)
    assert torch.equal(apply(picture(), train=False, **fields), apply(picture(), train=False))


def test_a_policy_and_randaugment_are_not_both_taken():
    with pytest.raises(ValueError, match="write randaugment: 0, or policy: none"):
        AugmentConfig(preset="randaugment", policy="trivial")


@pytest.mark.parametrize("preset", ["crop-flip", "pad-flip", "randaugment", "mixed"])
def test_the_seed_decides_all_that_happens(preset):
    assert torch.equal(apply(picture(), preset=preset), apply(picture(), preset=preset))
    seen = [apply(picture(), preset=preset, seed=seed) for seed in range(8)]
    assert any(not torch.equal(seen[0], each) for each in seen[1:])


@pytest.mark.parametrize("preset", PRESETS)
def test_validation_draws_nothing_random(preset):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    transforms.build(AugmentConfig(preset=preset), 32, train=False)(picture())
    assert torch.equal(before, torch.random.get_rng_state())


def test_transforms_can_be_sent_to_workers():
    build = transforms.build(AugmentConfig(preset="randaugment"), 32, train=True)
    copy = pickle.loads(pickle.dumps(build))
    torch.manual_seed(3)
    wanted = build(picture())
    torch.manual_seed(3)
    assert torch.equal(copy(picture()), wanted)


def test_grey_images_stay_grey():
    grey = picture()[:1]
    assert apply(grey, preset="randaugment").shape == (1, 32, 32)


def test_pixels_are_within_a_level_of_pillows():
    image = picture()
    pillow = Image.fromarray(image.permute(1, 2, 0).numpy())
    wanted = functional.pil_to_tensor(
        functional.center_crop(functional.resize(pillow, [37], antialias=True), [32, 32])
    )
    given = apply(image, preset="crop-flip", train=False)
    assert (given.int() - wanted.int()).abs().max() <= 1
