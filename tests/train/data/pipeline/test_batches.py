import multiprocessing
import pickle
from dataclasses import replace

import pytest
import torch

from data.small import encoded, equal, labels_of, load
from halfstep.errors import UserError
from halfstep.feed import CacheWarning, decode
from halfstep.train.data.sources.faults import DataWarning

BAD = b"not an image"


def open_folders(root, batch_size=3, seed=0, **fields):
    return load(batch_size, seed, **{"name": "folder", "root": str(root), **fields})


@pytest.mark.parametrize("preset", ["crop-flip", "randaugment", "pad-flip"])
def test_neither_workers_nor_epochs_before_nor_torchs_generator_change_a_batch(folders, preset):
    augment = {"preset": preset}
    alone = open_folders(folders, augment=augment)
    workers = open_folders(folders, augment=augment, workers=2)
    for epoch in (1, 2):
        torch.manual_seed(epoch)
        assert equal(list(alone.train.epoch(epoch)), list(workers.train.epoch(epoch)))
    assert equal(list(alone.val.epoch()), list(workers.val.epoch()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["ram", "disk"])
def test_images_that_are_kept_are_the_same_and_are_decoded_once(
    folders, tmp_path, monkeypatch, where, workers
):
    reads = multiprocessing.Value("i")
    real = decode.read_image

    def read(*args, **given):
        with reads:
            reads.value += 1
        return real(*args, **given)

    fields = {"augment": {"preset": "randaugment"}, "train": {"folder": "train", "limit": 9}}
    keeping = {"cache_images": where, "cache_images_gigabytes": 0.002}
    keeping["cache_images_folder"] = str(tmp_path / "kept")
    plain = open_folders(folders, **fields)
    wanted = [list(plain.train.epoch(1)), list(plain.train.epoch(2)), list(plain.val.epoch())]
    monkeypatch.setattr(decode, "read_image", read)
    for again in range(2):
        data = open_folders(folders, workers=workers, **fields, **keeping)
        found = [list(data.train.epoch(1)), list(data.train.epoch(2)), list(data.val.epoch())]
        assert all(equal(*pair) for pair in zip(found, wanted, strict=True))
        assert reads.value == (15 if where == "disk" or again == 0 else 30)
    assert (tmp_path / "kept").exists() == (where == "disk")


def test_epochs_warn_that_not_all_images_are_kept(folders):
    for number, file in enumerate((folders / "train").rglob("*.png")):
        file.write_bytes(encoded(number, 260))
    data = open_folders(folders, cache_images="ram", cache_images_gigabytes=0.0011)
    plain = list(open_folders(folders).train.epoch(2))
    list(data.train.epoch(1))
    with pytest.warns(CacheWarning, match="the cache of images is full"):
        assert equal(list(data.train.epoch(2)), plain)


def test_epoch_from_any_batch_is_bitwise_the_tail(folders):
    augment = {"preset": "randaugment"}
    whole = list(open_folders(folders, augment=augment).train.epoch(2))
    for start in range(len(whole) + 1):
        tail = open_folders(folders, augment=augment).train.epoch(2, start)
        assert equal(list(tail), whole[start:])
    for start in (-1, len(whole) + 1):
        with pytest.raises(ValueError, match=rf"start is {start}; allowed: 0 to {len(whole)}"):
            open_folders(folders).train.epoch(1, start)


def test_workers_go_on_after_an_epoch_that_was_broken_off(folders):
    data = open_folders(folders, 2, workers=2, augment={"preset": "crop-flip"})
    whole = list(open_folders(folders, 2, augment={"preset": "crop-flip"}).train.epoch(3))
    broken_off = data.train.epoch(1)
    next(broken_off)
    assert equal(list(data.train.epoch(3)), whole)
    assert equal(list(data.train.epoch(3, 2)), whole[2:])


def test_images_are_augmented_anew_each_epoch_and_differ_by_seed(folders):
    def image(seed, epoch):
        data = open_folders(
            folders, 1, seed, augment={"preset": "crop-flip"}, train={"folder": "train", "limit": 1}
        )
        return next(data.train.epoch(epoch))[0]

    assert torch.equal(image(0, 1), image(0, 1))
    different = [image(0, epoch) for epoch in range(1, 5)] + [image(1, 1)]
    assert len({tuple(each.flatten().tolist()) for each in different}) == 5


def test_loading_draws_nothing_from_the_generators_of_the_run(folders):
    before = torch.get_rng_state()
    data = open_folders(folders, augment={"preset": "randaugment"})
    list(data.train.epoch(1))
    list(data.val.epoch())
    assert torch.equal(before, torch.get_rng_state())


def test_images_cross_as_uint8_of_the_resolution(folders):
    images, labels = next(open_folders(folders).train.epoch(1))
    assert (images.dtype, images.shape) == (torch.uint8, (3, 3, 8, 8))
    assert (labels.dtype, labels.shape) == (torch.int64, (3,))


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_ends_the_run_and_is_named(folders, workers):
    (folders / "train" / "dog" / "2.png").write_bytes(BAD)
    with pytest.raises(
        UserError, match=r"train/dog/2.png .*; restore it, .*or leave it out"
    ) as error:
        list(open_folders(folders, workers=workers).train.epoch(1))
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("or write data.on_error=skip to continue without such images")


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_images_leave_smaller_batches_and_are_counted_once(folders, workers):
    (folders / "train" / "dog" / "2.png").write_bytes(BAD)
    data = open_folders(folders, 4, on_error="skip", workers=workers)
    (folders / "train" / "cat" / "0.png").unlink()
    with pytest.warns(DataWarning) as said:
        epochs = [list(data.train.epoch(epoch)) for epoch in (1, 2)]
    for batches in epochs:
        assert (len(labels_of(batches)), len(batches)) == (8, len(data.train))
    assert len(data.faults.seen) == 2
    assert sum(each.category is DataWarning for each in said) == 2


def test_a_training_batch_of_unreadable_images_takes_the_ones_that_follow(folders):
    for index in range(5):
        (folders / "train" / "cat" / f"{index}.png").write_bytes(BAD)
    (folders / "val" / "cat" / "0.png").write_bytes(BAD)
    data = open_folders(folders, 1, on_error="skip")
    with pytest.warns(DataWarning):
        whole, tail, val = (
            list(data.train.epoch(1)),
            list(data.train.epoch(1, 4)),
            list(data.val.epoch()),
        )
    assert [len(labels) for _, labels in whole] == [1] * 10
    assert equal(tail, whole[4:])
    assert labels_of(val) == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("split", ["train", "val"])
def test_split_without_a_readable_image_is_an_error(folders, split):
    for file in (folders / split).rglob("*.png"):
        file.write_bytes(BAD)
    data = open_folders(folders, on_error="skip")
    with pytest.warns(DataWarning), pytest.raises(UserError, match="not one image of a split"):
        list(getattr(data, split).epoch(1))


@pytest.mark.parametrize("train", [{}, {"limit": 50}], ids=["all", "some"])
def test_batches_of_images_in_memory_are_those_read_one_by_one(train):
    data = load(batch_size=16, name="digits", train=train)
    samples = data.train._loader._samples
    assert samples.ready is not None
    at_once = list(data.train.epoch(3, 1))
    data.train._loader._samples = replace(samples, ready=None)
    one_by_one = list(data.train.epoch(3, 1))
    assert equal(at_once, one_by_one)
    assert [each.stride() for each, _ in at_once] == [each.stride() for each, _ in one_by_one]


def test_what_workers_are_sent_can_be_pickled(folders):
    data = open_folders(folders, augment={"preset": "mixed"})
    samples = pickle.loads(pickle.dumps(data.train._loader._samples))
    assert len(samples.split) == 10
