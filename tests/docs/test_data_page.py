"""What docs/data.md shows is what halfstep takes."""

import re
from pathlib import Path
from typing import get_args

import torch
from PIL import Image

from halfstep.train import data
from halfstep.train.config.data import DataConfig
from halfstep.train.config.files import load

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_example_is_a_config(tmp_path):
    names = set()
    for number, example in enumerate(blocks("yaml")):
        base = "" if example.startswith("base:") else "base: digits\n"
        file = tmp_path / f"{number}.yaml"
        file.write_text(base + example)
        names.add(load(str(file)).data.name)
    assert names == {"csv", "folder", "webdataset", "import"}


def test_the_table_has_every_source():
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    said = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    (union, *_) = get_args(DataConfig)
    allowed = {
        name
        for section in get_args(union)
        for name in get_args(section.model_fields["name"].annotation)
    }
    assert said == allowed


def test_the_data_set_of_ones_own_loads(tmp_path, monkeypatch):
    (program,) = [block for block in blocks("python") if "# my_data.py" in block]
    (example,) = [block for block in blocks("yaml") if "my_data:" in block]
    (tmp_path / "my_data.py").write_text(program)
    (tmp_path / "my.yaml").write_text(example)
    monkeypatch.chdir(tmp_path)
    config = load("my.yaml", ["data.workers=0"])
    loaded = data.load(config.data, batch_size=8, seed=0, device=torch.device("cpu"))
    images, labels = next(loaded.val.epoch())
    assert loaded.classes == ("dark", "bright")
    assert images.shape == (8, 3, 32, 32)
    assert labels.tolist() == [0, 1] * 4


def test_the_loop_of_ones_own_decodes_its_photographs_once(tmp_path, monkeypatch):
    (program,) = [block for block in blocks("python") if "ImageCache" in block]
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (9, 7), (1, 2, 3)).save("one.png")
    names = {}
    exec(program.replace("gigabytes=8", "gigabytes=0.002"), names)
    photographs = names["Photographs"](["one.png"], lambda image: image)
    first = photographs[0]
    assert (first.shape, first[:, 0, 0].tolist()) == ((3, 7, 9), [1, 2, 3])
    kept = Path("photographs.images").read_bytes()
    assert photographs[0].equal(first)
    assert Path("photographs.images").read_bytes() == kept
    assert next(iter(names["prefetch"](photographs, "cpu"))).equal(first)
