"""Images on the device: the loader's pixels, the loader's distributions, and the same after all."""

import os
from itertools import product
from pathlib import Path

import pytest
import torch
from torchvision.transforms.v2 import functional

from data.small import CPU, encoded, equal, labels_of, load, section
from halfstep.errors import UserError
from halfstep.train import data
from halfstep.train.config.augment import AugmentConfig
from halfstep.train.data.pipeline import device_augment
from halfstep.train.data.pipeline.order import BatchShare
from halfstep.train.data.sources.faults import DataWarning
from halfstep.train.data.sources.seeding import generator

REAL = Path(os.environ.get("HALFSTEP_TEST_DATA", "no such folder"))


def open_folders(root, batch_size=3, seed=0, **fields):
    return load(batch_size, seed, **{"name": "folder", "root": str(root), **fields})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_without_augmentation_the_batches_are_the_loaders(folders, workers, interpolation):
    augment = {"interpolation": interpolation, "val_crop": 0.8}
    plain = open_folders(folders, augment=augment)
    held = open_folders(folders, augment=augment, cache_images="device", workers=workers)
    for epoch in (1, 2):
        assert equal(list(held.train.epoch(epoch)), list(plain.train.epoch(epoch)))
    assert equal(list(held.val.epoch()), list(plain.val.epoch()))


def test_a_validation_sees_the_loaders_pixels_whatever_the_augmentation(folders):
    for preset in ("crop-flip", "pad-flip"):
        plain, held = (
            open_folders(folders, augment={"preset": preset}, cache_images=where)
            for where in ("none", "device")
        )
        assert equal(list(held.val.epoch()), list(plain.val.epoch()))


def test_images_that_are_in_memory_are_the_loaders_too():
    plain, held = (load(name="digits", cache_images=where) for where in ("none", "device"))
    assert equal(list(held.train.epoch(2)), list(plain.train.epoch(2)))
    assert equal(list(held.val.epoch()), list(plain.val.epoch()))


@pytest.mark.parametrize("preset", ["crop-flip", "pad-flip"])
def test_an_epoch_from_any_batch_is_bitwise_the_tail(folders, preset):
    fields = {"augment": {"preset": preset}, "cache_images": "device"}
    whole = list(open_folders(folders, **fields).train.epoch(2))
    for start in range(len(whole) + 1):
        torch.manual_seed(start)  # the global generator has no say
        held = open_folders(folders, **fields)
        list(held.train.epoch(1))
        assert equal(list(held.train.epoch(2, start)), whole[start:])
    assert not equal(list(open_folders(folders, **fields).train.epoch(1)), whole)
    assert not equal(list(open_folders(folders, seed=1, **fields).train.epoch(2)), whole)


def test_shifts_and_flips_are_those_of_the_loader_in_distribution():
    settings = AugmentConfig(preset="pad-flip", padding=0.25).settings()
    images = torch.randint(1, 256, (2, 3, 8, 8), dtype=torch.uint8)
    chosen = torch.tensor([0, 1] * 4000)
    found = device_augment.shifted(images, chosen, settings, generator(0))
    counts = torch.zeros(2, 5, 5, dtype=torch.int64)
    total = 0
    for top, left, flip in product(range(5), range(5), (False, True)):
        shifted = functional.pad(images, [2])[..., top : top + 8, left : left + 8]
        shifted = shifted.flip(3) if flip else shifted
        same = (found == shifted[chosen]).flatten(1).all(1)
        counts[int(flip), top, left] = same.sum()
        total += int(same.sum())
    assert total == len(chosen)  # each is exactly one of the crops of RandomCrop
    expected = len(chosen) / counts.numel()
    # Chi-squared with 49 degrees of freedom: 0.9999 of its values are below 94.
    assert float(((counts - expected) ** 2 / expected).sum()) < 94


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [8, 24])
def test_a_box_is_resized_as_torchvision_does(interpolation, side):
    chance = torch.Generator().manual_seed(0)
    sizes = [(11, 17), (40, 33), (24, 24), (9, 60)]
    images = [torch.randint(256, (3, *size), dtype=torch.uint8, generator=chance) for size in sizes]
    heights, widths = torch.tensor(sizes).T
    found = device_augment.boxes(heights, widths, (0.08, 1.0), chance)
    flipped = torch.tensor([False, True, True, False])
    lengths = torch.tensor([image.numel() for image in images])
    crops = device_augment.resampled(
        torch.cat([image.flatten() for image in images]),
        lengths.cumsum(0) - lengths,
        widths,
        heights * widths,
        found,
        flipped,
        channels=3,
        side=side,
        interpolation=interpolation,
    )
    assert crops.dtype == torch.uint8
    for number, image in enumerate(images):
        box = [int(getattr(found, name)[number]) for name in ("top", "left", "height", "width")]
        wanted = functional.resized_crop(
            image.float(), *box, [side, side], functional.InterpolationMode(interpolation)
        )
        wanted = wanted.flip(2) if flipped[number] else wanted
        assert (crops[number] - wanted.clamp(0, 255)).abs().max() <= 0.51


def test_boxes_are_those_of_torchvision_in_distribution():
    size, count = (60, 40), 20_000
    heights, widths = (torch.full((count,), each) for each in size)
    found = device_augment.boxes(heights, widths, (0.08, 1.0), torch.Generator().manual_seed(0))
    assert bool((found.top >= 0).all() and (found.top + found.height <= size[0]).all())
    assert bool((found.left >= 0).all() and (found.left + found.width <= size[1]).all())
    from torchvision.transforms.v2 import RandomResizedCrop

    torch.manual_seed(0)
    crop, image = RandomResizedCrop(8), torch.zeros(3, *size)
    drawn = [crop.make_params([image]) for _ in range(4000)]
    for name in ("top", "left", "height", "width"):
        mine = getattr(found, name).double()
        theirs = torch.tensor([float(each[name]) for each in drawn], dtype=torch.float64)
        error = (mine.var() / count + theirs.var() / len(drawn)).sqrt()
        assert abs(mine.mean() - theirs.mean()) < 4.5 * error, name
        assert mine.std() == pytest.approx(theirs.std().item(), rel=0.06), name


def test_a_narrow_image_has_the_largest_box_in_its_middle():
    found = device_augment.boxes(
        torch.tensor([4]), torch.tensor([400]), (0.9, 1.0), torch.Generator().manual_seed(0)
    )
    assert [int(each) for each in (found.top, found.left, found.height, found.width)] == [
        *(0, 197, 4, 5)
    ]


def test_images_that_do_not_fit_are_refused_with_the_figure(folders):
    for number, file in enumerate(sorted((folders / "train").rglob("*.png"))):
        file.write_bytes(encoded(number, 260))
    fields = {"cache_images": "device", "cache_images_gigabytes": 0.0011}
    with pytest.raises(UserError, match=r"the images take 0.00197 GB, but .*_gigabytes is 0.0011"):
        open_folders(folders, resolution=256, **fields)
    held = open_folders(folders, augment={"preset": "crop-flip"}, **fields)
    with pytest.raises(UserError, match=r"device, and the images take .* write data.cache_images_"):
        held.hold()


def test_augmentation_of_single_images_is_refused(folders):
    for field in ({"preset": "randaugment"}, {"policy": "trivial"}, {"color_jitter": 0.4}):
        with pytest.raises(UserError, match=r"which data.cache_images: device cannot do; write"):
            open_folders(folders, augment=field, cache_images="device")


def test_an_image_that_cannot_be_read_is_left_out_as_by_the_loader(folders):
    (folders / "train" / "cat" / "1.png").write_bytes(b"not an image")
    found = []
    for where in ("none", "device"):
        held = open_folders(folders, 2, cache_images=where, on_error="skip")
        with pytest.warns(DataWarning, match=r"1\.png"):
            found.append(list(held.train.epoch(1)))
    assert equal(*found)
    fatal = open_folders(folders, cache_images="device")
    with pytest.raises(UserError, match=r"1\.png"):
        fatal.hold()


def test_processes_share_a_batch_and_draw_numbers_of_their_own(folders):
    config = section(
        name="folder", root=str(folders), cache_images="device", augment={"preset": "crop-flip"}
    )
    whole = data.load(config, batch_size=4, seed=0, device=CPU)
    parts = [
        data.load(config, batch_size=2, seed=0, device=CPU, part=BatchShare(rank, 2))
        for rank in (0, 1)
    ]
    mine, others = (list(each.train.epoch(1)) for each in parts)
    together = [
        (torch.cat([one[0], other[0]]), torch.cat([one[1], other[1]]))
        for one, other in zip(mine, others, strict=True)
    ]
    assert labels_of(together) == labels_of(whole.train.epoch(1))
    assert not torch.equal(mine[0][0], next(whole.train.epoch(1))[0][2:])


@pytest.mark.parametrize(
    ("needs", "fields"),
    [
        ("cifar-10-batches-py", {"name": "cifar10", "root": str(REAL), "verify": False}),
        ("imagenette224", {"name": "folder", "root": str(REAL / "imagenette224")}),
        ("classify-leaves", {"name": "csv", "root": str(REAL / "classify-leaves")}),
    ],
)
def test_real_images_are_the_loaders(needs, fields, tmp_path):
    if not (REAL / needs).exists():
        pytest.skip(f"needs HALFSTEP_TEST_DATA with {needs}")
    fields |= {"resolution": 32, "train": {"limit": 30}, "val": {"limit": 10}}
    if needs == "classify-leaves":
        lines = (REAL / needs / "train.csv").read_text().splitlines()
        labels = {line.partition(",")[2] for line in lines[1:31]}
        kept = [line for line in lines[1:] if line.partition(",")[2] in labels][:200]
        for name in ("train", "val"):
            (tmp_path / f"{name}.csv").write_text("\n".join([lines[0], *kept]))
            fields[name] = {**fields[name], "ann_file": str(tmp_path / f"{name}.csv")}
    plain, held = (load(**fields, cache_images=where) for where in ("none", "device"))
    assert equal(list(held.train.epoch(1)), list(plain.train.epoch(1)))
    assert equal(list(held.val.epoch()), list(plain.val.epoch()))
    fields["augment"] = {"preset": "crop-flip"}
    held = load(**fields, cache_images="device")
    assert next(held.train.epoch(1))[0].float().std() > 10
