import textwrap
import traceback
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from data.small import equal, labels_of, load
from halfstep.errors import UserError
from halfstep.train.data import DataWarning

MODULE = """
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

class Blobs(Dataset):
    classes = ["left", "right"]

    def __init__(self, count=6, kind="array", noise=False, side=10):
        self.count, self.kind, self.noise, self.side = count, kind, noise, side

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        pixels = np.full((self.side, self.side, 3), index * 20, np.uint8)
        if self.noise:
            pixels = np.random.randint(0, 256, pixels.shape).astype(np.uint8)
        image = {
            "array": lambda: pixels,
            "grey": lambda: Image.fromarray(pixels[..., 0]),
            "pil": lambda: Image.fromarray(pixels),
            "ready": lambda: torch.full((2, 8, 8), index / 10),
            "grey_ready": lambda: torch.full((1, 8, 8), index / 10),
            "uint8": lambda: torch.from_numpy(pixels).permute(2, 0, 1),
            "wrong": lambda: torch.zeros(3, 8, 8, dtype=torch.float64),
            "turned": lambda: np.arange(300, dtype=np.uint8).reshape(10, 10, 3)[..., ::-1],
            "sixteen": lambda: Image.fromarray(np.full((10, 10), 0x8000, np.uint16)),
            "float": lambda: Image.fromarray(np.ones((10, 10), np.float32)),
            "mixed": lambda: torch.zeros(1 + 2 * (index % 2), 8, 8),
        }[self.kind]()
        return image, index % 2

def odd(label=7):
    return [(np.zeros((8, 8, 3), np.uint8), label)] * 3

def other_classes():
    data = Blobs()
    data.classes = ["left", "middle", "right"]
    return data

def broken():
    raise RuntimeError("Dataset not found")

def pairless():
    return [1, 2]

def stream():
    return iter([])

def tensors(kind="float32", label=1):
    images = torch.arange(6.0)[:, None, None, None].expand(6, 3, 8, 8)
    labels = torch.tensor([0, 1, 0, 1, 0, label])
    if kind == "uint8":
        images = images.to(torch.uint8)
    return TensorDataset(images if kind == "strided" else images.contiguous(), labels)

class Raising(Blobs):
    # Item `at` raises what `error` names.

    def __init__(self, error, listed=None, at=4):
        super().__init__()
        self.error, self.at = error, at
        if listed:
            self.samples = [(f"{listed}/{index}.jpg", 0) for index in range(6)]

    def __getitem__(self, index):
        if index == self.at:
            raise {"Stop": StopIteration, "Exit": SystemExit, "File": FileNotFoundError}.get(
                self.error, RuntimeError
            )("no such\\nrecord")
        return super().__getitem__(index)

class Endless(Blobs):
    def __len__(self):
        raise NotImplementedError("who knows")

number = 3
"""


@pytest.fixture
def blobs(tmp_path, monkeypatch):
    (tmp_path / "blob_data.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)


def open_import(target="blob_data:Blobs", args=(), val_args=None, **fields):
    train = {"target": target, "args": dict(args)}
    val = {"target": target, "args": dict(args if val_args is None else val_args)}
    return load(**{"name": "import", "train": train, "val": val, **fields})


@pytest.mark.parametrize(
    ("kind", "channels"), [("array", 3), ("pil", 3), ("uint8", 3), ("grey", 1)]
)
def test_images_of_every_kind_are_resized_to_uint8(blobs, kind, channels):
    data = open_import(args={"kind": kind})
    images, labels = next(data.val.epoch())
    assert images.shape == (4, channels, 8, 8)
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == [0, 20, 40, 60]
    assert labels.tolist() == [0, 1, 0, 1]
    assert data.image_shape == (channels, 8, 8)


def test_fp32_tensors_are_taken_as_they_are(blobs):
    data = open_import(args={"kind": "ready"}, augment={"preset": "crop-flip"})
    images, labels = next(data.val.epoch())
    prepared, _ = data.prepare(images, labels, device=torch.device("cpu"), train=False)
    assert prepared[:, 0, 0, 0].tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("kind", ["float32", "uint8", "strided"])
def test_tensors_make_the_batches_that_their_items_make(blobs, kind):
    data = open_import("blob_data:tensors", args={"kind": kind}, classes=2)
    samples = data.train._loader._samples
    assert (samples.ready is not None) == (kind == "float32")
    found = list(data.train.epoch(2))
    data.train._loader._samples = replace(samples, ready=None)
    assert equal(found, list(data.train.epoch(2)))


def test_a_label_of_no_class_among_tensors_is_named(blobs):
    data = open_import("blob_data:tensors", args={"label": 7}, classes=2)
    with pytest.raises(UserError, match=r"blob_data:tensors\[5\] has the label '7'"):
        list(data.train.epoch(1))


def test_classes_come_from_the_data_set_or_the_config(blobs):
    assert open_import().classes == ("left", "right")
    assert open_import(classes=3).classes == ("0", "1", "2")
    with pytest.raises(
        UserError, match=r"does not say which classes it has; write --options data.classes=\.\.\."
    ):
        open_import("blob_data:odd")


def test_what_a_data_set_draws_is_seeded_like_augmentation(blobs):
    first = list(open_import(args={"noise": True}).train.epoch(1))
    assert equal(list(open_import(args={"noise": True}, workers=2).train.epoch(1)), first)
    assert not equal(list(open_import(args={"noise": True}).train.epoch(2)), first)


def test_limit_and_arguments_reach_each_split(blobs):
    train = {"target": "blob_data:Blobs", "args": {"count": 9}, "limit": 4}
    val = {"target": "blob_data:Blobs", "args": {"count": 3}}
    data = load(name="import", train=train, val=val)
    assert (data.train.images, data.val.images) == (4, 3)
    assert labels_of(data.val.epoch()) == [0, 1, 0]


@pytest.mark.parametrize(
    ("target", "args", "said"),
    [
        ("nowhere:make", {}, "data.train.target: cannot import 'nowhere'"),
        ("blob_data:Blob", {}, "no function 'Blob'; did you mean 'Blobs'"),
        ("blob_data:number", {}, "no function 'number'"),
        ("blob_data:Blobs", {"cuont": 1}, r"data.train.args is {'cuont': 1}, which .* refuses"),
        ("blob_data:Blobs", {"count": 0}, "makes an empty data set"),
        ("blob_data:stream", {}, "allowed: a data set with a length"),
        ("blob_data:odd", {}, r"blob_data:odd\[0\] has the label '7'; allowed: 0 to 1"),
        ("blob_data:odd", {"label": 0.5}, "has the label '0.5'"),
        ("blob_data:odd", {"label": "cat"}, "has the label 'cat'"),
        ("blob_data:odd", {"label": float("nan")}, r"odd\[0\] has the label 'nan'; allowed: 0 to"),
        (
            "blob_data:Blobs",
            {"kind": "float"},
            r"Blobs\[0\] has pixels of Pillow's mode 'F', whose",
        ),
        ("blob_data:broken", {}, r"data.train.args is {}, which .* refuses: Dataset not found"),
        ("blob_data:pairless", {}, r"\[0\] is a int; allowed: \(image, label\)"),
        ("blob_data:Blobs", {"kind": "wrong"}, r"Tensor of torch.float64 with shape \(3, 8, 8\)"),
    ],
)
def test_what_is_wrong_is_one_line(blobs, target, args, said):
    with pytest.raises(UserError, match=said) as error:
        open_import(target, args, classes=2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_different_shapes_are_named(blobs, workers):
    data = open_import(
        args={"kind": "mixed"}, workers=workers, augment={"mean": [0.5], "std": [1.0]}
    )
    with pytest.raises(UserError, match=r"^blob_data:Blobs\[1\] has the shape \(3, 8, 8\)"):
        list(data.val.epoch())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"error": "Stop"}, r"^blob_data:Raising\[4\] raised StopIteration: no such record; "),
        ({"error": "Exit"}, r"^blob_data:Raising\[4\] raised SystemExit: no such record; "),
        (
            {"error": "Other", "listed": "photos"},
            r"^blob_data:Raising\[4\] \(photos/4.jpg\) raised RuntimeError: no such record; ",
        ),
        ({"error": "File"}, r"^blob_data:Raising\[4\] cannot be read: no such"),
    ],
    ids=["stop", "exit", "path", "file"],
)
def test_item_that_raises_is_named_and_does_not_end_the_epoch(blobs, args, said, workers):
    data = open_import("blob_data:Raising", args, workers=workers)
    for batches in (data.train, data.val):
        with pytest.raises(UserError, match=said):
            list(batches.epoch())


@pytest.mark.parametrize("workers", [0, 1])
def test_traceback_of_an_item_that_raises_comes_out_of_its_worker(blobs, workers):
    data = open_import("blob_data:Raising", {"error": "Other"}, workers=workers)
    with pytest.raises(UserError) as caught:
        list(data.val.epoch())
    assert "no such\nrecord" not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert 'blob_data.py", line' in shown
    assert "RuntimeError: no such\nrecord" in shown


def test_first_item_is_named_or_passed_over(blobs):
    args = {"error": "File", "at": 0}
    with pytest.raises(UserError, match=r"^blob_data:Raising\[0\] cannot be read"):
        open_import("blob_data:Raising", args)
    data = open_import("blob_data:Raising", args, on_error="skip")
    with pytest.warns(DataWarning, match=r"left out: blob_data:Raising\[0\] cannot be read"):
        assert len(labels_of(data.val.epoch())) == 5


def test_data_set_whose_length_raises_is_named(blobs):
    with pytest.raises(
        UserError,
        match=r"^data.train.target is 'blob_data:Endless', whose length raised NotImplementedError",
    ):
        open_import("blob_data:Endless")


def test_ready_images_must_have_the_resolution(blobs):
    with pytest.raises(UserError, match=r"write --options data.resolution=8"):
        open_import(args={"kind": "ready"}, resolution=16)


def test_target_that_is_no_import_path_is_refused_by_the_config():
    with pytest.raises(ValidationError, match="String should match pattern"):
        open_import("blob_data")


def test_arrays_turned_round_and_images_of_sixteen_bits_keep_their_values(blobs):
    turned, _ = next(open_import(args={"kind": "turned"}, resolution=10).val.epoch())
    assert turned[0, :, 0, 0].tolist() == [2, 1, 0]
    deep, _ = next(open_import(args={"kind": "sixteen"}).val.epoch())
    assert deep.unique().tolist() == [0x80]


def test_labels_of_validation_must_mean_what_those_of_training_mean(blobs):
    val = {"target": "blob_data:other_classes"}
    with pytest.raises(UserError, match="whose 3 classes are not the 2 of training"):
        load(name="import", train={"target": "blob_data:Blobs"}, val=val)


def test_a_config_says_how_ready_tensors_were_normalised(blobs):
    said = {"mean": [0.5], "std": [0.25]}
    data = open_import(args={"kind": "grey_ready"}, augment=said)
    assert data.normalisation == ((0.5,), (0.25,))
    images, labels = next(data.val.epoch())
    prepared, _ = data.prepare(images, labels, device=torch.device("cpu"), train=False)
    assert torch.equal(prepared, images)
