import hashlib
import pickle
import struct
import warnings
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torchvision import datasets

from data.small import labels_of, load
from halfstep.errors import UserError
from halfstep.train.data.sources.source import spread


def write_cifar10(root, images=10):
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    generator = np.random.default_rng(0)
    written = {}
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        pixels = generator.integers(0, 256, (images, 3072), dtype=np.uint8)
        labels = [index % 10 for index in range(images)]
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}, 2))
        written[name] = pixels.reshape(-1, 3, 32, 32)
    names = {"label_names": [f"class{number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, 2))
    return written


def write_mnist(root, name):
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    pixels = {}
    for split, count in (("train", 12), ("t10k", 5)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        head = struct.pack(">iiii", 2051, count, 28, 28)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        head = struct.pack(">ii", 2049, count)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
        pixels[split] = images
    return pixels


def open_set(root, name="cifar10", **fields):
    return load(name=name, root=str(root), **{"resolution": 32, **fields})


def test_reading_mnist_warns_of_nothing(tmp_path):
    write_mnist(tmp_path, "MNIST")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as a mark, it would also judge what other tests left open
        assert labels_of(open_set(tmp_path, "mnist").val.epoch()) == [0, 1, 2, 3, 4]


def test_cifar_with_the_published_checksums_is_read_by_torchvision(tmp_path, monkeypatch):
    written = write_cifar10(tmp_path)

    def digest(name):
        return hashlib.md5((tmp_path / "cifar-10-batches-py" / name).read_bytes()).hexdigest()

    train = [[name, digest(name)] for name in written if name != "test_batch"]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", digest("test_batch")]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": digest("batches.meta")}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    data = open_set(tmp_path)
    assert data.classes == tuple(f"class{number}" for number in range(10))
    assert (data.train.images, data.val.images) == (50, 10)
    images, _ = next(data.val.epoch())
    assert torch.equal(images, torch.from_numpy(written["test_batch"][:4]))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_is_grey(tmp_path, name):
    pixels = write_mnist(tmp_path, "MNIST" if name == "mnist" else "FashionMNIST")
    data = open_set(tmp_path, name, resolution=28)
    assert data.image_shape == (1, 28, 28)
    assert len(data.classes) == 10
    images, labels = next(data.val.epoch())
    assert torch.equal(images[:, 0], torch.from_numpy(pixels["t10k"][:4]))
    assert labels.tolist() == [0, 1, 2, 3]
    prepared, _ = data.prepare(images, labels, device=torch.device("cpu"), train=False)
    assert prepared.shape == (4, 1, 28, 28)


def test_missing_files_are_one_line_that_says_how_to_get_them(tmp_path):
    for name in ("cifar10", "cifar100", "mnist", "fashion-mnist"):
        with pytest.raises(UserError, match=f"^{name} is not in .*data.download=true") as error:
            open_set(tmp_path, name)
        assert "\n" not in str(error.value)


def test_download_without_a_network_says_so(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise URLError("Temporary failure in name resolution")

    monkeypatch.setattr("torchvision.datasets.utils.urllib.request.urlopen", no_network)
    for name in ("cifar10", "mnist"):
        said = f"^{name} could not be downloaded into .*; fetch it where there is a network"
        with pytest.raises(UserError, match=said) as error:
            open_set(tmp_path, name, download=True)
        assert "\n" not in str(error.value)


def test_files_with_other_pixels_are_taken_only_when_told_so(tmp_path):
    written = write_cifar10(tmp_path)
    with pytest.raises(
        UserError, match=r"not with the checksums .*write --options data.verify=false"
    ):
        open_set(tmp_path)
    data = open_set(tmp_path, verify=False, val={"limit": 5})
    images, labels = next(data.val.epoch())
    first = list(spread(10, 5)[:4])
    assert torch.equal(images, torch.from_numpy(written["test_batch"][first]))
    assert labels.tolist() == first
    assert sorted(labels_of(data.train.epoch(1))) == sorted([*range(10)] * 5)


def test_sets_without_checksums_refuse_to_skip_them(tmp_path):
    with pytest.raises(UserError, match=r"mnist has no checksums; write data.verify=true"):
        open_set(tmp_path, "mnist", verify=False)
