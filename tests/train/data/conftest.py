"""Tiny images on disk: listed in CSV files, in folders and in shards."""

import csv
import io
import json
import tarfile

import pytest

from data.small import encoded


@pytest.fixture
def write_csv(tmp_path):
    """Write a CSV file; images that its rows name are made unless they are to be missing."""

    def write(name, rows, header=("image", "label"), missing=()):
        with (tmp_path / name).open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        for number, row in enumerate(rows):
            image = tmp_path / row[0]
            if row[0] and row[0] not in missing and not image.exists():
                image.parent.mkdir(parents=True, exist_ok=True)
                image.write_bytes(encoded(1000 + number + 100 * len(name)))
        return str(tmp_path / name)

    return write


@pytest.fixture
def folders(tmp_path):
    """Make train/{cat,dog} with 5 images each and val/{cat,dog} with 3 each."""
    number = 0
    for split, count in (("train", 5), ("val", 3)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(count):
                (tmp_path / split / name / f"{index}.png").write_bytes(encoded(number, 9 + number))
                number += 1
    return tmp_path


@pytest.fixture
def write_shard(tmp_path):
    """Write a tar shard; each sample is a mapping of extension to bytes."""

    def write(name, samples):
        with tarfile.open(tmp_path / name, "w") as tar:
            for number, sample in enumerate(samples):
                for kind, content in sample.items():
                    member = tarfile.TarInfo(f"{number:04}.{kind}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        return tmp_path / name

    return write


@pytest.fixture
def shards(tmp_path, write_shard):
    """Make 5 training shards of 3 to 11 samples, each a class of its own, and one to validate."""
    number = 0
    sizes = [7, 3, 11, 5, 8]
    for shard, size in enumerate(sizes):
        samples = []
        for _ in range(size):
            samples.append({"png": encoded(number), "cls": str(number).encode()})
            number += 1
        write_shard(f"train-{shard}.tar", samples)
    write_shard("val.tar", [{"jpg": encoded(500 + n, kind="JPEG"), "cls": b"3"} for n in range(6)])
    sized = {f"train-{shard}.tar": size for shard, size in enumerate(sizes)}
    (tmp_path / "sizes.json").write_text(json.dumps(sized | {"val.tar": 6}))
    return tmp_path
