"""The five posts at toy size: every piece runs, and the tables say what was measured where."""

# ruff: noqa: RUF001  (Chinese text has Chinese punctuation)
from __future__ import annotations

import importlib
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGE = BENCHMARKS.parent / "docs" / "experiments" / "posts.md"


@pytest.fixture(scope="module")
def posts():
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("posts")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The three folders of images, with a few tiny ones."""
    root = tmp_path_factory.mktemp("pictures")
    numbers = np.random.default_rng(0)

    def write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)

    for split in ("train", "val"):
        for name in ("a", "b"):
            for index in range(2):
                write(root / "imagenette224" / split / name / f"{index}.jpg")
    rows = [(f"images/{index}.jpg", "ab"[index % 2]) for index in range(20)]
    for image, _ in rows:
        write(root / "classify-leaves" / image)
    lines = "".join(f"{image},{label}\n" for image, label in rows)
    (root / "classify-leaves" / "train.csv").write_text(f"image,label\n{lines}")
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    pixels = numbers.integers(0, 256, (4, 3072), dtype=np.uint8)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [0, 1, 2, 3]}, 2))
    names = {"label_names": [str(number) for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, 2))
    return root


@pytest.mark.parametrize("part", ["leaves", "imagenette", "alexnet", "levels", "cookbook"])
def test_every_piece_runs_at_toy_size_and_is_a_row(posts, pictures, part, capsys):
    assert posts.main([part, "--toy", "--data", str(pictures)]) == 0
    said = capsys.readouterr().out
    pieces = posts.PARTS[part].pieces
    rows = [line for line in said.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[2:]] == [
        piece.name for piece in pieces
    ]
    for piece, row in zip(pieces, rows[2:], strict=True):
        assert "failed" not in row
        assert "not yet measured" not in row
        if piece.kind == "elsewhere":
            assert "needs several GPUs: `halfstep train" in row
        else:
            assert "cpu, torch" in row
    if part == "leaves":
        assert "STEP_BYPASSES_SCALER" in said


def test_a_run_is_stopped_in_time_and_goes_on_in_the_next_call(posts, pictures, tmp_path):
    # What a GPU does in 75 seconds takes a fake trainer none: it stops twice, then it is done.
    (tmp_path / "fake.py").write_text(
        "import json, pathlib, signal, sys, time\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "count = len(list(folder.iterdir()))\n"
        "(folder / str(count)).touch()\n"
        "if count < 2:\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(138))\n"
        "    time.sleep(60)\n"
        "(folder / 'summary.json').write_text(json.dumps({'status': 'finished',\n"
        "    'best_accuracy': 0.5, 'first_nonfinite_step': None, 'skipped_steps': 0}))\n"
    )

    class Fake(posts.Session):
        def _halfstep(self, *arguments):
            out = arguments[arguments.index("--out") + 1]
            return posts.subprocess.Popen([sys.executable, str(tmp_path / "fake.py"), out])

    def session(seconds):
        made = Fake("levels", pictures, tmp_path / "runs", tmp_path, seconds, toy=False)
        made.part = replace(made.part, pieces=made.part.pieces[:1])
        return made

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(posts, "STOPPED_AFTER", 0.5)
        session(10.0).run()  # a piece may take 90 seconds, so none begins
        assert not (tmp_path / "runs").exists()
        session(1000.0).run()
    written = json.loads((tmp_path / "levels.json").read_text())
    (row,) = written["rows"].values()
    assert row["best_accuracy"] == 0.5
    assert {"commit", "device", "versions", "date"} <= row.keys()
    again = session(1000.0)
    again.run()  # nothing is left
    assert again.rows == written["rows"]


def test_the_pages_have_the_committed_tables(posts):
    text, chinese = PAGE.read_text(), PAGE.with_suffix(".zh.md").read_text()
    for part in posts.PARTS:
        file = posts.RESULTS / f"{part}.json"
        rows = json.loads(file.read_text())["rows"] if file.exists() else {}
        lines = posts.table(part, rows)
        there = [posts.docs_table.chinese(posts.PAGE, line) for line in lines]
        for page, made in ((text, lines), (chinese, there)):
            table = "".join(f"{line}\n" for line in made)
            assert f"<!-- {part} -->\n{table}<!-- /{part} -->" in page


def test_results_are_in_chinese_too(posts):
    origin = {"device": "H200", "versions": {"torch": "2.11"}, "commit": "abc"}
    broken = {"best_accuracy": None, "first_nonfinite_step": 12, "skipped_steps": 0}
    fine = {"best_accuracy": 0.5, "first_nonfinite_step": None, "skipped_steps": 3}
    rows = {
        "half-bn32, 256 images": {**fine, **origin},
        "half-bn32, 4096 images, 4x the rate": {**broken, **origin},
        "fp16, 4096 images at once": {"failed": "no memory", **origin},
    }
    lines = posts.table("imagenette", rows)
    text = "\n".join(posts.docs_table.chinese(posts.PAGE, line) for line in lines)
    assert "| half-bn32，每步 256 张图像 | 训练正常 | 50.00 %，跳过 3 步 |" in text
    assert (
        "| half-bn32，每步 4096 张图像，4 倍学习率 | 出现非有限值 | 第 12 步出现非有限值 |" in text
    )
    assert "| fp16，一次 4096 张图像 | 显存不足 | 失败：no memory |" in text
    assert text.endswith("纯半精度出现非有限值的训练：half-bn32, 4096 images, 4x the rate。")
