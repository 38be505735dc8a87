"""Files from others, made to harm: none runs code, writes outside, or fills the memory.

Each kind of file that halfstep reads is opened with hostile content by what reads it, in a process
that may take little more memory than it has. An import path in a config is the one thing that runs
code, and the person who writes the config writes it.
"""

import gzip
import io
import json
import os
import pickle
import resource
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from halfstep.apex import amp
from halfstep.cli import main
from halfstep.compare.cells import directory
from halfstep.errors import UserError
from halfstep.feed.decode import read_image
from halfstep.feed.pixels import CorruptImage
from halfstep.train import data
from halfstep.train.build import weights
from halfstep.train.config.data import WebdatasetConfig
from halfstep.train.store import checkpoint, rotation
from halfstep.train.store.lock import locked
from halfstep.yaml_text import parse

SPARE = 400 * 2**20
CONFIG = """epochs: 1
batch_size: 2
model: {name: "timm:resnet18"}
optimizer: {name: sgd, lr: 0.1}
schedule: {name: constant}
device: cpu
"""


@pytest.fixture(autouse=True)
def little_memory():
    """Let the process take little more memory than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def outside(tmp_path):
    """What lies beside the folder that is worked in, and must stay as it is."""
    (tmp_path / "outside.txt").write_text("mine")
    yield tmp_path
    assert sorted(each.name for each in tmp_path.iterdir()) == ["inside", "outside.txt"]
    assert (tmp_path / "outside.txt").read_text() == "mine"


@pytest.fixture
def inside(outside, monkeypatch):
    folder = outside / "inside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


class Payload:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("..") / "written.txt",)


class Bomb:
    """Takes 100 gigabytes when it is unpickled, by a function that is allowed."""

    def __reduce__(self):
        return bytearray, (10**11,)


def run(capsys, *arguments):
    """Run the command line; return its code and what it said on stderr."""
    code = main([str(each) for each in arguments])
    return code, capsys.readouterr().err


def refused(capsys, *arguments):
    code, err = run(capsys, *arguments)
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert code == 2, err
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize("harm", [Payload, Bomb])
def test_a_checkpoint_runs_nothing_and_takes_no_memory(inside, example, harm):
    file = inside / "checkpoints" / "step-00000003.pt"
    checkpoint.save(file, example(progress={"best": harm()}))
    with pytest.raises(UserError, match="is damaged or not a checkpoint of halfstep"):
        checkpoint.load(file)
    with pytest.raises(UserError, match=r"no checkpoint of .* is complete"):
        rotation.newest_whole(inside)


def test_a_checkpoint_that_is_compressed_is_not_unpacked(inside, example):
    whole, packed = inside / "whole.pt", inside / "packed.pt"
    torch.save({"model": torch.zeros(2**22)}, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(packed, "w", 8, compresslevel=1) as new:
        for part in old.namelist():
            new.writestr(part, old.read(part))
    assert packed.stat().st_size < whole.stat().st_size / 100
    with pytest.raises(UserError, match="is compressed, to"):
        weights.read(str(packed))
    with pytest.raises(OSError, match="is compressed"):
        checkpoint.refuse_compressed(packed)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Payload()),
        pickle.dumps({"weight": Payload()}, protocol=0),
        struct.pack("<Q", 10**12) + b"{}",
        b"\x80\x02cos\nsystem\n(S'touch ../written.txt'\ntR.",
    ],
    ids=["pickle", "old pickle", "length", "system"],
)
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_weights_run_nothing(inside, content, name):
    (inside / name).write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as tensors alone"):
        weights.read(str(inside / name))


DEEP = "[" * 100_000
JSON = [DEEP, "null", "[1]", '"text"', "{" * 50_000, '{"status": ' + DEEP, "1" * 10_000, "\x00"]


@pytest.mark.parametrize("text", JSON)
def test_summaries_and_metrics_of_others_are_listed_as_damaged(inside, capsys, text):
    run_directory = inside / "runs" / "theirs"
    run_directory.mkdir(parents=True)
    (run_directory / "config.yaml").write_text(f"name: theirs\nrecipe: fp32\n{CONFIG}")
    (run_directory / "metrics.jsonl").write_text(f'{text}\n{{"kind": "val"}}\n{text}')
    (run_directory / "summary.json").write_text(text)
    (run_directory / "cell.json").write_text(text)
    assert main(["runs", "runs"]) == 0
    assert "theirs" in capsys.readouterr().out
    assert directory.read(run_directory / "cell.json") is None


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "m0: &m0 {k0: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 8)}], k{n}: 1}}\n" for n in range(1, 9)
)


PIPES = """data:
  {name: webdataset, classes: 2,
  train: {urls: "pipe:touch ../written"}, val: {urls: "pipe:true"}}"""


@pytest.mark.parametrize(
    "text",
    [
        "epochs: !!python/object/apply:os.system ['touch ../written.txt']",
        "epochs: !!python/object/new:pathlib.Path ['x']",
        "!!python/module:os {}",
        LAUGHS,
        MERGES,
        f"model: {{args: &a {{again: [{'*a, ' * 9}]}}}}",
        "a: " + "[" * 5_000,
        "name: ../../outside",
        "name: /etc",
        PIPES,
    ],
)
def test_yaml_runs_nothing_and_stays_small(inside, capsys, text):
    (inside / "theirs.yaml").write_text(CONFIG + text)
    refused(capsys, "train", "theirs.yaml")


def test_yaml_aliases_that_stay_small_are_taken():
    assert parse("a: &a [1, 2]\nb: [*a, *a]", "x") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    with pytest.raises(UserError, match="its aliases make it more than 100,000 values"):
        parse(LAUGHS, "x")


def test_rows_of_a_list_reach_no_further_than_reading(inside, capsys):
    (inside / "loop.png").symlink_to("loop.png")
    (inside / "zero.png").symlink_to("/dev/zero")
    (inside / "text.png").symlink_to("../outside.txt")
    os.mkfifo(inside / "fifo.png")
    with (inside / "sparse.png").open("wb") as sparse:
        sparse.truncate(2**40)
    names = ["../outside.txt", "/etc/hostname", "/dev/zero", "/proc/self/mem", "loop.png"]
    names += ["zero.png", "text.png", "fifo.png", "sparse.png", "x" * 5000, "$(touch x)"]
    rows = "".join(f"{name},{'ab'[n % 2]}\n" for n, name in enumerate(names))
    (inside / "train.csv").write_text(f"image,label\n{rows}")
    code = main(["data", "check", "--csv", "train.csv", "--json"])
    found = json.loads(capsys.readouterr().out)["faults"]
    assert code == 2
    assert {fault["places"][0]["row"] for fault in found} == set(range(2, 13))


def png(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100_000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def jpeg(width, height, **settings):
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", **settings)
    content = bytearray(file.getvalue())
    place = content.index(b"\xff\xc2" if settings.get("progressive") else b"\xff\xc0")
    content[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(content)


@pytest.mark.parametrize(
    "make",
    [
        lambda: png(60_000, 60_000),
        lambda: png(2**31 - 1, 2**31 - 1),
        lambda: jpeg(65_000, 65_000),
        lambda: jpeg(65_000, 65_000, progressive=True),
        lambda: b"\xff\xd8\xff\xff\xff" + jpeg(65_000, 65_000)[2:],
        lambda: b"\x89PNG\r\n\x1a\n",
        lambda: b"\xff\xd8\xff" + bytes(10),
        lambda: b"P6 60000 60000 255\n",
        lambda: b"GIF89a" + struct.pack("<HH", 65_000, 65_000) + bytes(100),
        lambda: (
            b"BM" + struct.pack("<IIIIiiHHI", 0, 0, 54, 40, 60_000, 60_000, 1, 24, 0) + bytes(99)
        ),
    ],
)
def test_images_that_promise_too_many_pixels_are_refused(inside, make):
    with pytest.raises(CorruptImage):
        read_image(make(), "theirs")


@pytest.mark.parametrize(
    "settings", [{}, {"progressive": True}, {"exif": b"Exif\0\0MM\0*" + bytes(99)}]
)
def test_sides_of_a_sound_jpeg_are_found_behind_what_else_it_holds(settings):
    with pytest.raises(CorruptImage, match="65000 x 60000 pixels; allowed: up to 178,956,970"):
        read_image(jpeg(65_000, 60_000, **settings), "theirs")
    assert read_image(jpeg(64, 64, **settings)).shape == (3, 64, 64)


def member(name, kind=tarfile.REGTYPE, content=b"", link="", size=None):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content) if size is None else size
    return info, content


def shard(file, members, pack=lambda content: content):
    whole = b"".join(
        info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)
        for info, content in members
    )
    file.write_bytes(pack(whole + bytes(1024)))


GOOD = [member("0.png", content=png(9, 9)), member("0.cls", content=b"0")]
TARS = {
    "traversal": [
        member("../written.png", content=png(9, 9)),
        member("../written.cls", content=b"1"),
    ],
    "absolute": [
        member("/tmp/written.png", content=b"x"),
        member("/tmp/written.cls", content=b"1"),
    ],
    "symlink": [member("1.png", tarfile.SYMTYPE, link="../outside.txt"), *GOOD],
    "hard link": [member("1.png", tarfile.LNKTYPE, link="/etc/passwd"), *GOOD],
    "device": [member("1.png", tarfile.CHRTYPE), member("1.cls", tarfile.FIFOTYPE), *GOOD],
    "promises a terabyte": [*GOOD, member("1.png", content=b"x", size=2**40)],
    "sparse": [*GOOD, member("1.png", tarfile.GNUTYPE_SPARSE, size=2**30)],
    "long name of a gigabyte": [*GOOD, member("x", tarfile.GNUTYPE_LONGNAME, size=2**31)],
    "header of a gigabyte": [*GOOD, member("x", tarfile.XHDTYPE, size=2**31)],
}


def shards(folder, urls="theirs.tar"):
    of = {"urls": urls}
    return WebdatasetConfig.model_validate(
        {"name": "webdataset", "root": str(folder), "classes": 2, "resolution": 8, "workers": 0}
        | {"cache": str(folder / "cache")}
        | {"train": of, "val": of}
    )


def read_all(config):
    loaded = data.load(config, batch_size=4, seed=0, device=torch.device("cpu"))
    return list(loaded.val.epoch())


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("harm", TARS)
def test_shards_write_nothing_and_stay_small(inside, harm, pack):
    shard(inside / "theirs.tar", TARS[harm], pack)
    try:
        assert all(len(labels) for _, labels in read_all(shards(inside)))
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017  (either end is right, if nothing else happens)


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("pipe:touch ../written.txt", "which no file matches"),
        ("http://x/{0..999999999}.tar", "1,000,000,000 shards"),
        ("{a,b}" * 40, "shards; allowed: up to 1,000,000"),
        ("zeros.tar", "'1.png' declares 2,147,483,648 bytes; allowed: up to"),
        ("packed.tar", "that is not compressed"),
    ],
)
def test_what_a_config_and_a_shard_promise_is_bounded(inside, urls, said):
    shard(inside / "zeros.tar", [*GOOD, member("1.png", size=2**31)])
    shard(inside / "packed.tar", GOOD, lambda whole: gzip.compress(whole + bytes(2**20)))
    with pytest.raises(UserError, match=said):
        read_all(shards(inside, urls))


@pytest.mark.parametrize(
    "saved",
    [
        {"loss_scaler0": "x"},
        {"loss_scaler0": {"loss_scale": Payload(), "unskipped": 0}},
        {"loss_scaler0": {"loss_scale": float("nan"), "unskipped": 0}},
        {"loss_scaler0": {"loss_scale": -1.0, "unskipped": 0}},
        {"loss_scaler0": {"loss_scale": 1.0}},
        {"other": 1},
    ],
)
def test_apex_checkpoints_of_other_content_are_refused(inside, saved):
    model = torch.nn.Linear(2, 2)
    amp.initialize(model, torch.optim.SGD(model.parameters(), 0.1), opt_level="O1", verbosity=0)
    before = amp.state_dict()
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict"):
        amp.load_state_dict(saved)
    assert amp.state_dict() == before


def test_a_lock_that_is_a_link_does_not_empty_what_it_points_to(inside):
    (inside / ".lock").symlink_to("../outside.txt")
    with pytest.raises(OSError, match="symbolic links"), locked(inside, str):
        pass


def test_files_replace_links_and_leave_what_they_point_to(inside, example):
    link = inside / "last.pt"
    link.symlink_to("../outside.txt")
    checkpoint.save(link, example())
    assert not link.is_symlink()
    rotation.link(link, inside / "best.pt")
