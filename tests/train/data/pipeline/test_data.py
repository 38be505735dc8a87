from typing import get_args

import torch

from data.small import CPU, load
from halfstep.train import data
from halfstep.train.config.data import DataConfig
from halfstep.train.data.pipeline import batch_augment


def prepared(loaded, epoch=1, number=0, train=True):
    images, labels = next(loaded.train.epoch(1))
    return loaded.prepare(images, labels, device=CPU, train=train, epoch=epoch, number=number)


def test_every_name_that_a_config_allows_has_a_source():
    names = set()
    for kind in get_args(get_args(DataConfig)[0]):
        names |= set(kind.model_fields["name"].annotation.__args__)
    assert names == set(data._SOURCES)


def test_digits_are_ready_and_taken_as_they_are():
    loaded = load(name="digits", resolution=8)
    assert loaded.image_shape == (1, 8, 8)
    images, labels = next(loaded.train.epoch(1))
    assert images.dtype == torch.float32
    assert torch.equal(prepared(loaded)[0], images)
    assert torch.equal(prepared(loaded)[1], labels)
    assert not loaded.faults.seen


def test_uint8_images_are_normalised_on_the_device(folders):
    augment = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]}
    loaded = load(name="folder", root=str(folders), augment=augment)
    images, labels = next(loaded.train.epoch(1))
    mean, std = (torch.tensor(augment[key]).view(3, 1, 1) for key in ("mean", "std"))
    found, same_labels = prepared(loaded)
    assert torch.allclose(found, (images / 255 - mean) / std, atol=1e-6)
    assert torch.equal(same_labels, labels)


def test_mixing_is_of_training_alone_and_depends_on_seed_epoch_and_number(folders):
    def open_mixed(seed=0):
        return load(4, seed, name="folder", root=str(folders), augment={"mixup": 1.0, "erase": 1.0})

    loaded = open_mixed()
    images, labels = prepared(loaded, epoch=2, number=3)
    assert labels.shape == (4, 2)
    assert torch.allclose(labels.sum(1), torch.ones(4))
    again, _ = prepared(open_mixed(), epoch=2, number=3)
    assert torch.equal(images, again)
    assert not torch.equal(prepared(loaded, epoch=3, number=3)[0], images)
    assert not torch.equal(prepared(loaded, epoch=2, number=2)[0], images)
    plain, plain_labels = prepared(loaded, train=False)
    stored, _ = next(loaded.train.epoch(1))
    assert torch.equal(plain, batch_augment.normalise(stored, *loaded.normalisation))
    assert plain_labels.dtype == torch.int64
