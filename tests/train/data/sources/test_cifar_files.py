import pickle

import numpy as np
import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.data.sources import cifar_files


def write(root, file, content):
    folder = root / "cifar-100-python"
    folder.mkdir(exist_ok=True)
    (folder / file).write_bytes(pickle.dumps(content, 2))


@pytest.fixture
def cifar100(tmp_path):
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    for file in ("train", "test"):
        write(tmp_path, file, {"data": pixels, "fine_labels": [1, 0], "coarse_labels": [9, 9]})
    write(tmp_path, "meta", {"fine_label_names": ["apple", "bee"]})
    return tmp_path


def test_images_and_fine_labels_are_read(cifar100):
    images, labels = cifar_files.read(cifar100, "cifar100", train=True)
    assert images.shape == (2, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert images[0, 0, 0, :3].tolist() == [0, 1, 2]
    assert labels.tolist() == [1, 0]
    assert cifar_files.classes(cifar100, "cifar100") == ("apple", "bee")


class Malicious:
    def __reduce__(self):
        return (print, ("executed",))


def test_pickle_that_would_run_code_is_refused_and_not_executed(cifar100, capsys):
    write(cifar100, "train", {"data": Malicious(), "fine_labels": [1]})
    with pytest.raises(UserError, match=r"references .*print, which is not allowed"):
        cifar_files.read(cifar100, "cifar100", train=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1], "holds a list"),
        ({"data": 1}, "is not a file of cifar100"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1]}, "1 labels"),
        ({"data": np.zeros((1, 3072)), "fine_labels": [1]}, "is not a file of cifar100"),
        ({"data": np.zeros((1, 7), np.uint8), "fine_labels": [1]}, "is not a file of cifar100"),
        ({"data": np.zeros((1, 3072), np.uint8), "fine_labels": [2]}, "label 2; allowed: 0 to 1"),
    ],
)
def test_what_is_no_such_file_is_named(cifar100, content, said):
    write(cifar100, "train", content)
    with pytest.raises(UserError, match=said):
        cifar_files.read(cifar100, "cifar100", train=True)


def test_damaged_and_missing_files_are_named(cifar100):
    (cifar100 / "cifar-100-python" / "train").write_bytes(b"\x80\x02}q")
    with pytest.raises(UserError, match=r"cifar-100-python/train is damaged"):
        cifar_files.read(cifar100, "cifar100", train=True)
    (cifar100 / "cifar-100-python" / "test").unlink()
    with pytest.raises(UserError, match=r"test cannot be read: No such file"):
        cifar_files.read(cifar100, "cifar100", train=False)
    write(cifar100, "meta", {})
    with pytest.raises(UserError, match="has no 'fine_label_names'"):
        cifar_files.classes(cifar100, "cifar100")
