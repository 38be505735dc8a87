"""Whatever a person writes, `halfstep train` begins to train or says in one line what is wrong.

Configs, overrides and CSV files are drawn at random, half right and half wrong; each case goes
through the command line in this process and stops where a run would begin to write.
"""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from halfstep.cli import main
from halfstep.train.config import Config
from halfstep.train.config.errors import keys
from halfstep.train.loop import loop

CONFIG = {
    "epochs": 1,
    "batch_size": 2,
    "device": "cpu",
    "data": {"name": "csv", "root": "ROOT", "resolution": 8, "workers": 0},
    "model": {
        "name": "timm:resnet18",
        "args": {"layers": [1, 1, 1, 1], "channels": [2, 2, 2, 2], "stem_width": 2},
    },
    "optimizer": {"name": "sgd", "lr": 0.1},
    "schedule": {"name": "constant"},
}
# What would go to the network, start processes, or run code that the text names.
LEFT_ALONE = ("data.download", "model.pretrained", "tracking", "model.compile")
KEYS = [key for key in keys(Config) if key not in LEFT_ALONE]
WORDS = [
    "csv", "digits", "folder", "webdataset", "import", "cifar10", "sgd", "adam", "adamw", "lamb",
    "cosine", "one-cycle", "plateau", "multistep", "fp16", "o2", "bf16", "half", "int8", "mixed",
    "crop-flip", "skip", "rollback", "linear", "accuracy", "train.csv", "ROOT", "timm:resnet18",
    "torchvision:alexnet", "resnet10t", "cuda", "cpu", "auto", "", "~", "no/such", "import:a.b:c",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 3, 8, 16, 2**31, 2**63, 10**30]),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "lr", "limit", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
# A model's own arguments are its library's business; huge ones would fill the memory.
SMALL = st.one_of(st.none(), st.booleans(), st.sampled_from([-1, 0, 1, 2, "x"]))
# What may well be right, alone or with others.
LIKELY = [
    ("accumulate", 3), ("auto_microbatch", True), ("average", {"decay": 0.5}), ("batch_size", 1),
    ("checkpoints.every_steps", 2), ("clip_norm", 1.0), ("data.augment", {"preset": "mixed"}),
    ("data.augment.crop", "padded"), ("data.augment.mean", [0.5]), ("data.augment.val_crop", 0.1),
    ("data.name", "digits"), ("data.name", "folder"), ("data.on_error", "skip"),
    ("data.resolution", 9), ("data.train.ann_file", "ROOT/train.csv"), ("data.train.limit", 1),
    ("data.val.ann_file", "train.csv"), ("data.val.limit", 1), ("early_stopping.patience", 1),
    ("fp16", True), ("label_smoothing", 0.1), ("lr_scaling", {"rule": "sqrt"}), ("max_steps", 1),
    ("model.channels_last", True), ("model.freeze", ["layer*"]), ("model.freeze", ["*"]),
    ("model.name", "resnet18"), ("model.name", "torchvision:alexnet"),
    ("model.weights", "ROOT/a.png"), ("on_nonfinite", "rollback"),
    ("optimizer", {"name": "lamb"}), ("optimizer.momentum", 0),
    ("optimizer.name", "adamw"), ("optimizer.name", "lbfgs"), ("recipe", "o2"), ("recipe", "fp16"),
    ("recipe", "bf16+tf32"), ("recipe.loss_scale", {"init": 8}), ("schedule.name", "one-cycle"),
    ("schedule", {"name": "multistep", "milestones": [1]}), ("schedule.name", "plateau"),
    ("schedule.warmup_epochs", 1), ("schedule.warmup", 0.5), ("val_every", 9),
]  # fmt: skip
OPTIONS = st.lists(
    st.one_of(
        st.sampled_from(LIKELY),
        st.sampled_from(LIKELY),
        st.sampled_from(LIKELY),
        st.tuples(st.sampled_from(KEYS).filter(lambda key: "args" not in key), VALUES),
        st.tuples(st.sampled_from(["model.args.drop_rate", "model.args.x"]), SMALL),
        st.tuples(st.text("abdeo.t_", min_size=1, max_size=8), VALUES),
    ),
    max_size=4,
)
SHAPES = st.dictionaries(
    st.sampled_from([key for key in KEYS if "." not in key and key != "model"]), VALUES, max_size=3
)
LIKELY_SHAPES = st.lists(st.sampled_from([each for each in LIKELY if "." not in each[0]])).map(dict)
FILES = st.one_of(
    st.none(),
    LIKELY_SHAPES.map(json.dumps),
    LIKELY_SHAPES.map(json.dumps),
    SHAPES.map(json.dumps),
    st.text(max_size=20).filter(lambda text: not text.startswith("{")),
)
IMAGES = ["a.png", "b.png", "c.png", "d.png"]
CELLS = st.sampled_from(
    [*IMAGES, "a", "b", "none.png", "", "train", "val", "../x.png", "broken.png"]
)
ROWS = st.lists(st.lists(CELLS, max_size=4), max_size=6)
GOOD_ROWS = [
    [name, label, split]
    for name, label, split in zip(IMAGES, "abab", ["train", "train", "val", "val"], strict=True)
]
HEADERS = st.sampled_from([["image", "label", "split"], ["image", "label"], ["label"], [], ["x"]])
TABLES = st.one_of(
    st.just([["image", "label", "split"], *GOOD_ROWS]),
    st.just([["image", "label", "split"], *GOOD_ROWS]),
    st.builds(lambda header, rows: [header, *rows], HEADERS, ROWS),
    st.builds(lambda rows: [["image", "label", "split"], *GOOD_ROWS, *rows], ROWS),
)
LINES = TABLES.map(lambda rows: "\n".join(",".join(row) for row in rows).encode())
BYTES = st.one_of(LINES, LINES, LINES, st.binary(max_size=30))


class BeginsToTrain(BaseException):
    """Everything was checked, and nothing was wrong."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    generator = np.random.default_rng(0)
    for name in IMAGES:
        Image.fromarray(generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(root / name)
    (root / "broken.png").write_bytes(b"\x89PNG no more")
    return root


def run(folder, text, options, table):
    """Return how a case ends: True if training would begin, else the line that was printed."""
    root = str(folder)
    given_text = json.dumps(CONFIG) if text is None else text
    if text is not None and text.startswith("{"):
        given_text = json.dumps({**CONFIG, **json.loads(text)})
    (folder / "c.yaml").write_text(
        given_text.replace("ROOT", root), encoding="utf-8", errors="replace"
    )
    (folder / "train.csv").write_bytes(table)
    said = [f"{key}={json.dumps(value).replace('ROOT', root)}" for key, value in options]
    arguments = ["train", str(folder / "c.yaml"), "--out", str(folder / "run")]
    for each in said:
        arguments += ["--options", each]
    err = io.StringIO()
    try:
        with redirect_stderr(err), redirect_stdout(io.StringIO()):
            code = main(arguments)
    except BeginsToTrain:
        return True
    lines = [line for line in err.getvalue().splitlines() if not line.startswith("warning: ")]
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def campaign(folder, monkeypatch, cases, *, derandomize):
    def begin(*_, **__):
        raise BeginsToTrain

    monkeypatch.setattr(loop.run_directory, "prepare", begin)
    ends = []

    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(FILES, OPTIONS, BYTES)
    def case(text, options, table):
        ends.append(run(folder, text, options, table))

    case()
    return ends


def test_the_unharmed_case_begins_to_train(folder, monkeypatch):
    table = b"image,label,split\na.png,x,train\nb.png,y,train\nc.png,x,val\n"
    monkeypatch.setattr(
        loop.run_directory, "prepare", lambda *_, **__: (_ for _ in ()).throw(BeginsToTrain)
    )
    assert run(folder, None, [], table) is True


def test_a_hundred_cases_end_in_training_or_in_one_line(folder, monkeypatch):
    ends = campaign(folder, monkeypatch, 100, derandomize=True)
    # Half right and half wrong, or it would look at one gate only.
    assert 10 < ends.count(True) < len(ends) - 25
    assert len(set(ends)) > 25


@pytest.mark.slow
def test_two_thousand_cases_end_in_training_or_in_one_line(folder, monkeypatch):
    ends = campaign(folder, monkeypatch, 2000, derandomize=False)
    assert len(ends) == 2000
