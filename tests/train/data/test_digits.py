import torch
from sklearn.datasets import load_digits
from torchvision.transforms.v2 import functional

from halfstep.train.config import DataConfig
from halfstep.train.data import load


def test_digits_are_split_by_class_and_nothing_is_lost():
    splits = load(DataConfig(resolution=8))
    train, val = splits.train.tensors[1], splits.val.tensors[1]
    assert len(train) + len(val) == 1797
    assert 0.20 <= len(val) / 1797 <= 0.26
    wanted = torch.bincount(torch.tensor(load_digits().target)) / 4
    assert (torch.bincount(val) - wanted).abs().max() <= 1
    assert splits.classes == tuple("0123456789")


def test_split_does_not_depend_on_any_seed():
    torch.manual_seed(1)
    first = load(DataConfig(resolution=8))
    torch.manual_seed(2)
    second = load(DataConfig(resolution=8))
    assert torch.equal(first.val.tensors[0], second.val.tensors[0])
    assert torch.equal(first.train.tensors[1], second.train.tensors[1])


def test_training_images_are_normalised_and_of_the_resolution_asked_for():
    splits = load(DataConfig(resolution=20))
    images = splits.train.tensors[0]
    assert splits.image_shape == (1, 20, 20)
    assert images.dtype == torch.float32
    assert abs(images.mean().item()) < 1e-5
    assert abs(images.std().item() - 1) < 1e-5


def test_pixels_are_those_of_the_scans():
    digits = load_digits()
    images = functional.resize(torch.tensor(digits.images)[:, None], [16, 16], antialias=True)
    splits = load(DataConfig(resolution=16))
    shown = splits.val.tensors[0][0].double()
    scans = images.flatten(1)
    centred = scans - scans.mean(1, keepdim=True)
    alike = torch.nn.functional.cosine_similarity(centred, (shown - shown.mean()).flatten()[None])
    assert alike.max() > 1 - 1e-6
    assert digits.target[alike.argmax()] == splits.val.tensors[1][0]
