"""Whatever is typed, listed or left of a checkpoint, a command ends with one line and no traceback.

Sound command lines, CSV files and checkpoints are mutated at random. Each case goes through the
command line in this process; command lines and lists stop where training or a comparison would
begin.
"""

import ast
import io
import json
import random
import shutil
import struct
import warnings
import zipfile
import zlib
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from halfstep.cli import main
from halfstep.compare import comparison
from halfstep.engine.misuse import EngineWarning
from halfstep.files import write_atomically
from halfstep.train.loop import loop
from halfstep.train.processes import launch
from halfstep.train.store import checkpoint

MANY = 1000
MISSING = object()
NUMBERS = st.integers(0, 2**32)


class Begins(BaseException):
    """Everything was checked, and nothing was wrong."""


@pytest.fixture
def stops(monkeypatch, tmp_path):
    """Let nothing begin that takes long, and work in a directory of its own."""

    def begin(*_, **__):
        raise Begins

    monkeypatch.setattr(loop.run_directory, "prepare", begin)
    monkeypatch.setattr(comparison, "compare", begin)
    monkeypatch.setattr(launch, "launch", begin)
    monkeypatch.chdir(tmp_path)


def end(arguments):
    """Return how a command line ends: "begins", or its code and the last line of stderr."""
    err = io.StringIO()
    try:
        with redirect_stderr(err), redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("default", EngineWarning)  # as without pytest
            code = main(arguments)
    except Begins:
        return "begins"
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("warning: ")]
    assert code in {0, 2}, (arguments, lines)
    assert not any(line.startswith("Traceback") for line in lines), (arguments, lines)
    if code == 2:
        assert len(lines) == 1, (arguments, lines)
    return f"{code} {lines[-1] if lines else ''}"


def campaign(case, cases):
    """Run a case with as many seeds, and return how each ended."""
    ends = []

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=cases < MANY,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(NUMBERS)
    def one(seed):
        ends.append(case(random.Random(seed)))

    one()
    return ends


def few_or_many(few):
    return pytest.mark.parametrize("cases", [few, pytest.param(MANY, marks=pytest.mark.slow)])


def mutated(content, chance):
    """Return bytes or a text of which some part is changed, left out, repeated or put in."""
    whole = content
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(whole) + 1)
        length = chance.choice([0, 1, 1, 2, 8, 64, len(whole)])
        part = whole[start : start + length]
        alphabet = (
            ",;\t\"'\n\r\0\u00e9 =[]{}:-../x0\ud800" if isinstance(whole, str) else range(256)
        )
        drawn = chance.choices(alphabet, k=chance.choice([0, 1, 1, 3]))
        new = "".join(drawn) if isinstance(whole, str) else bytes(drawn)
        kept = chance.choice([0, 0, 1, 2])
        whole = whole[:start] + new + part * kept + whole[start + length :]
    return whole


LINES = [
    "train digits --recipe fp16 --seed 1 --options epochs=1 optimizer.lr=0.1 --out run",
    "train digits --tag a --device cpu --quiet --resume auto --processes 2 --max-restarts 1",
    "train c.yaml --options data.root=. data.resolution=8 model.name=timm:resnet18",
    "compare digits --recipes fp32 fp16 --seeds 0 1 --grid optimizer.lr=0.1,0.2 --out comparison",
    "eval run --data train.csv --root . --checkpoint last --json --columns image=image",
    "predict run train.csv a.png --csv out.csv --top-k 2 --checkpoint best",
    "export run --format safetensors --checkpoint best --out x",
    "runs runs --json",
    "configs",
    "config show digits --options epochs=2",
    "recipes fp16+act2 --fields --on cpu",
    "recipes o2 --json",
    "data folds train.csv --k 2 --seed 1 --root . --out folds --overwrite",
    "data check --csv train.csv --root . --columns image=image,label=label",
    "data check c.yaml --options data.resolution=8 --json",
    "migrate program.py --to torch --diff",
    "doctor --list LOG_OF_ZERO",
    "env",
]
TOKENS = sorted(
    {token for line in LINES for token in line.split()} | {"", "-", "--", "-h", "=", "0"}
)


def sound_files(folder):
    generator = np.random.default_rng(0)
    rows = ["image,label"]
    for number in range(8):
        pixels = generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]}")
    (folder / "train.csv").write_text("\n".join(rows) + "\n")
    # Doctor runs it, and a traceback of its own is its own.
    (folder / "program.py").write_text(
        "try:\n    from apex import amp\nexcept ImportError:\n    amp = None\n"
    )
    (folder / "c.yaml").write_text(
        "epochs: 1\nbatch_size: 2\nmodel: {name: resnet18}\noptimizer: {name: sgd, lr: 0.1}\n"
        "schedule: {name: constant}\ndata: {name: csv, resolution: 8, workers: 0,\n"
        "  val: {ann_file: train.csv}}\n"
    )


@few_or_many(60)
def test_mutated_command_lines(stops, tmp_path, cases):
    sound_files(tmp_path)

    def case(chance):
        tokens = chance.choice(LINES).split()
        for _ in range(chance.randint(0, 3)):
            place = chance.randrange(len(tokens) + 1)
            kept = [mutated(token, chance) for token in tokens[place : place + 1]]
            drawn = [chance.choice(TOKENS)]
            tokens[place : place + 1] = chance.choice([kept, drawn, [], drawn + kept])
        # With --debug, tracebacks are asked for.
        return end([token.replace("--debug", "") for token in tokens])

    ends = campaign(case, cases)
    assert ends.count("begins") > cases / 50
    assert len(set(ends)) > cases / 5


@few_or_many(60)
def test_mutated_lists(stops, tmp_path, cases):
    sound_files(tmp_path)
    sound = (tmp_path / "train.csv").read_text()
    commands = [["train", "c.yaml"], ["data", "check", "c.yaml"], ["data", "check", "--csv"]]
    commands += [["data", "folds", "--k", "2", "--overwrite"], ["data", "folds", "--seed", "1"]]

    def case(chance):
        command = chance.choice(commands)
        text = mutated(sound, chance)
        encoding = chance.choice(["utf-8"] * 6 + ["utf-16", "latin-1"])
        (tmp_path / "train.csv").write_bytes(text.encode(encoding, errors="replace"))
        return end([*command, *([] if "c.yaml" in command else ["train.csv"])])

    ends = campaign(case, cases)
    codes = Counter(each.split(" ")[0] for each in ends)
    assert codes.keys() >= {"begins", "0", "2"}


def placed(content, path, value):
    """Return nested dicts and lists with another value at a path, or without what is there."""
    first, *rest = path
    whole = content.copy()
    if rest:
        whole[first] = placed(content[first], rest, value)
    elif value is MISSING:
        del whole[first]
    else:
        whole[first] = value
    return whole


def drawn_path(content, chance):
    path = []
    while isinstance(content, dict | list) and content and (not path or chance.random() < 0.7):
        path.append(chance.choice(sorted(content) if isinstance(content, dict) else [0]))
        content = content[path[-1]]
    return path


def write(file, state):
    """Write a checkpoint as a run does, with a checksum, whatever is in it."""
    write_atomically(file, partial(checkpoint._write, state))


def resealed(content):
    """Return a checkpoint whose parts have the CRC-32 of what is in them; others as they are."""
    sealed = bytearray(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            at = archive.start_dir
        for part in archive.infolist():
            name, extra = struct.unpack_from("<HH", sealed, part.header_offset + 26)
            start = part.header_offset + 30 + name + extra
            crc = zlib.crc32(sealed[start : start + part.compress_size])
            struct.pack_into("<I", sealed, at + 16, crc)  # zipfile reads the directory's alone
            at += 46 + sum(struct.unpack_from("<HHH", sealed, at + 28))
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError):
        return content
    return bytes(sealed)


@pytest.fixture
def finished(trained_once, tmp_path, monkeypatch):
    """The checkpoint of a finished run, and the two commands that use it."""
    monkeypatch.chdir(tmp_path)
    run = Path(shutil.copytree(trained_once, "run"))
    Image.new("L", (8, 8)).save("a.png")
    file = run / "checkpoints" / "best.pt"
    resume = ["train", str(run / "config.yaml"), "--quiet", "--overwrite", "--out", "other"]
    return file, [["predict", str(run), "a.png"], [*resume, "--resume", str(file)]]


@few_or_many(12)
def test_mutated_checkpoints(finished, cases):
    file, uses = finished
    sound = file.read_bytes()
    stored = torch.load(file, weights_only=True)
    values = [None, 0, -1, 1e30, float("nan"), "x", [], {}, {"a": 1}, torch.zeros(3), (1, 2), b"x"]
    values.append(MISSING)

    def case(chance):
        # Not through the name that links it: os.link keeps what was read before.
        file.unlink()
        if chance.random() < 0.5:
            write(file, placed(stored, drawn_path(stored, chance), chance.choice(values)))
        else:
            changed = mutated(sound, chance)
            file.write_bytes(resealed(changed) if chance.random() < 0.7 else changed)
        return end(chance.choice(uses))

    ends = campaign(case, cases)
    codes = Counter(each.split(" ")[0] for each in ends)
    assert codes["2"] > cases / 4


FAILED = json.loads(Path(__file__).with_name("once_failed.json").read_text())


@pytest.mark.parametrize("path", FAILED)
def test_checkpoints_that_once_failed(finished, path):
    file, (predict, resume) = finished
    stored = torch.load(file, weights_only=True)
    file.unlink()
    value = ast.literal_eval(FAILED[path])
    write(file, placed(stored, path.split("."), value))
    both_read = path.partition(".")[0] in {"averaged", "classes", "preprocessing"}
    assert end(predict if both_read else resume).startswith("2 error: ")
