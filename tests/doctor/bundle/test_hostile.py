"""Bundles and evidence of others, made to harm: nothing runs or is written, memory is bounded."""

from __future__ import annotations

import pickle
import resource
import struct
import sys
from pathlib import Path

import pytest

from doctor.bundle.test_saved import change, first_operator, leave
from doctor.replay.test_births import FAULTS
from halfstep.cli import main

SPARE = 400 * 2**20
FILES = ["step.json", "evidence.json", "tensors.safetensors"]
DEEP = "[" * 100_000
PROMISE = b'{"0":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4000000000]}}'


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "bundle"
    leave(folder, FAULTS[4][0])
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def theirs(whole, tmp_path, monkeypatch):
    """A bundle beside a file that stays as it is, in a process that may take little more memory."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    (tmp_path / "outside.txt").write_text("mine")
    inside = tmp_path / "inside"
    folder = inside / "bundle"
    folder.mkdir(parents=True)
    for name, content in whole.items():
        (folder / name).write_bytes(content)
    monkeypatch.chdir(inside)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, before[1]))
    yield folder
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["inside", "outside.txt"]
    assert [each.name for each in inside.iterdir()] == ["bundle"]
    assert (tmp_path / "outside.txt").read_text() == "mine"


class Payload:
    """Writes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("written.txt"),)


def said(capsys, *arguments):
    code = main(["doctor", *map(str, arguments)])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Payload()),
        DEEP.encode(),
        b'{"evidence": ' + DEEP.encode(),
        struct.pack("<Q", 10**12) + b"{}",
        struct.pack("<Q", len(PROMISE)) + PROMISE,
        b"1" * 10_000,
        b"",
    ],
    ids=["pickle", "deep", "deep evidence", "length", "shape", "number", "empty"],
)  # fmt: skip
def test_files_of_other_content_are_refused_in_a_line(theirs, capsys, name, content) -> None:
    (theirs / name).write_bytes(content)
    code, err = said(capsys, theirs)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert name in err


@pytest.mark.parametrize("target", ["/dev/zero", "../../outside.txt", "../../not_there", "bundle"])
@pytest.mark.parametrize("name", ["step.json", "evidence.json"])
def test_links_are_not_read_without_end(theirs, capsys, name, target) -> None:
    (theirs / name).unlink()
    (theirs / name).symlink_to(target)
    code, err = said(capsys, theirs)
    assert (code, err.count("\n")) == (2, 1), err


def call(name, *args):
    return lambda record: first_operator(record).update(name=name, args=list(args), kwargs={})


def promise_lines(record) -> None:
    record["recording"]["lines"] = {"theirs.py": {"1000000000": "x"}}


def promise_elements(record) -> None:
    record["recording"]["given"][0]["shape"] = [10**12]


@pytest.mark.parametrize(
    ("harm", "note"),
    [
        (call("aten.from_file.default", "../outside.txt", None, 4), "no operator aten.from_file"),
        (call("image.write_file.default", "../written", {"tensor": 0}), "no operator image.write"),
        (call("aten.zeros.default", [10**11]), "cannot be run here: RuntimeError"),
        (promise_elements, "cannot be run here: RuntimeError"),
        (promise_lines, "step 2 repeats here"),
    ],
)
def test_steps_reach_no_files_and_little_memory(theirs, capsys, harm, note) -> None:
    change(theirs / "step.json", harm)
    code, err = said(capsys, theirs)
    assert code == 0
    assert note in err


def no_inputs(record) -> None:
    record["births"][0]["inputs"] = []


def no_autocast(record) -> None:
    del record["loop"]["shapes"][0]["events"][0]["facts"]["autocast"]


@pytest.mark.parametrize(
    ("harm", "given"),
    [
        # A bundle's births are those of its step, which runs again.
        (no_inputs, "bundle/evidence.json"),
        (no_autocast, "bundle/evidence.json"),
        (no_autocast, "bundle"),
    ],
)
def test_evidence_that_does_not_fit_together_is_refused(theirs, capsys, harm, given) -> None:
    change(theirs / "evidence.json", harm)
    code, err = said(capsys, given)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{given} is not a valid doctor file: its record contradicts itself" in err


@pytest.mark.parametrize("text", [DEEP, "null", "[1]", '{"diagnosis": 1, "evidence": {}}'])
def test_a_run_whose_diagnosis_is_of_others_is_refused(theirs, capsys, text) -> None:
    (theirs / "config.yaml").write_text("name: theirs\n")
    (theirs / "diagnosis.json").write_text(text)
    code, err = said(capsys, theirs)
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("error: ")
