import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from data.small import encoded
from halfstep.errors import UserError
from halfstep.train.data.sources.pictures import Pictures, Texts, folder, locate


def test_packed_texts_are_the_texts():
    texts = ["a.jpg", "", "ö/ß.png", "b" * 300, "\udcff"]
    packed = Texts.pack(texts)
    assert [packed[index] for index in range(len(packed))] == texts
    assert len(Texts.pack([])) == 0
    copy = pickle.loads(pickle.dumps(packed))
    assert copy[2] == texts[2]


def test_pictures_are_read_and_named_by_file_and_row(tmp_path):
    (tmp_path / "a.png").write_bytes(encoded(1))
    rows = np.array([7])
    pictures = Pictures(tmp_path, Texts.pack(["a.png"]), np.array([4]), "train.csv", rows)
    image, label = pictures.read(0)
    assert torch.equal(image, functional.pil_to_tensor(Image.open(tmp_path / "a.png")))
    assert label == 4
    assert pictures.where(0) == f"train.csv, row 7 ({tmp_path / 'a.png'})"
    assert Pictures(tmp_path, Texts.pack(["a.png"]), np.array([4])).where(0) == str(
        tmp_path / "a.png"
    )


def test_files_are_looked_for_here_and_then_in_the_root(tmp_path, monkeypatch):
    root, here = tmp_path / "root", tmp_path / "here"
    root.mkdir(), here.mkdir()
    monkeypatch.chdir(here)
    (root / "list.csv").touch()
    assert locate("list.csv", root, "data.train.ann_file") == root / "list.csv"
    (here / "list.csv").touch()
    assert locate("list.csv", root, "data.train.ann_file").resolve() == here / "list.csv"
    with pytest.raises(
        UserError, match=r"data.val.ann_file is 'no.csv', but there is no file no.csv"
    ):
        locate("no.csv", root, "data.val.ann_file")


def test_root_must_be_a_folder(tmp_path):
    assert folder(str(tmp_path)) == tmp_path
    (tmp_path / "file").touch()
    for name, problem in (("file", "is a file"), ("gone", "does not exist")):
        with pytest.raises(UserError, match=f"{problem}; write --options data.root=FOLDER"):
            folder(str(tmp_path / name))
