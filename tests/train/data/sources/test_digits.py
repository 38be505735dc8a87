import torch
from sklearn.datasets import load_digits
from torchvision.transforms.v2 import functional

from halfstep.train.config.data import DigitsConfig, SplitConfig
from halfstep.train.data.sources.digits import load


def test_digits_are_split_by_class_and_nothing_is_lost():
    source = load(DigitsConfig(resolution=8))
    train, val = source.train.labels, source.val.labels
    assert len(train) + len(val) == 1797
    assert 0.20 <= len(val) / 1797 <= 0.26
    wanted = torch.bincount(torch.tensor(load_digits().target)) / 4
    assert (torch.bincount(val) - wanted).abs().max() <= 1
    assert source.classes == tuple("0123456789")


def test_split_does_not_depend_on_any_seed():
    torch.manual_seed(1)
    first = load(DigitsConfig(resolution=8))
    torch.manual_seed(2)
    second = load(DigitsConfig(resolution=8))
    assert torch.equal(first.val.images, second.val.images)
    assert torch.equal(first.train.labels, second.train.labels)


def test_training_images_are_normalised_and_of_the_resolution_asked_for():
    images = load(DigitsConfig(resolution=20)).train.images
    assert images.shape[1:] == (1, 20, 20)
    assert images.dtype == torch.float32
    assert abs(images.mean().item()) < 1e-5
    assert abs(images.std().item() - 1) < 1e-5


def test_normalisation_is_the_one_that_was_applied():
    source = load(DigitsConfig(resolution=8))
    (mean,), (std,) = source.normalisation
    raw = source.train.images * std + mean
    assert torch.allclose(raw.max(), torch.tensor(1.0))
    assert torch.allclose(raw.min(), torch.tensor(0.0), atol=1e-6)


def test_pixels_are_those_of_the_scans():
    digits = load_digits()
    images = functional.resize(torch.tensor(digits.images)[:, None], [16, 16], antialias=True)
    val = load(DigitsConfig(resolution=16)).val
    shown, label = val.read(0)
    shown = shown.double()
    scans = images.flatten(1)
    centred = scans - scans.mean(1, keepdim=True)
    alike = torch.nn.functional.cosine_similarity(centred, (shown - shown.mean()).flatten()[None])
    assert alike.max() > 1 - 1e-6
    assert digits.target[alike.argmax()] == label
    assert val.where(0) == "digit 0"


def test_limit_is_of_each_split():
    source = load(DigitsConfig(train=SplitConfig(limit=20), val=SplitConfig(limit=7)))
    assert (len(source.train), len(source.val)) == (20, 7)
