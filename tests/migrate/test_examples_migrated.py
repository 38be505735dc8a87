"""The programs under examples/apex, migrated, run and give the same losses and loss scales."""

import contextlib
import functools
import sys
from pathlib import Path

import pytest
import torch

from halfstep import apex

from .conftest import migrate

EXAMPLES = Path(__file__).parents[2] / "examples" / "apex"
STEPS = {
    "dcgan": ["--steps", "4", "--batch-size", "8"],
    "imagenet": ["--epochs", "1", "--steps", "4", "--batch-size", "16"],
}
OVERFLOW = ("--loss-scale", "dynamic", "--overflow-at", "1")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _apex():
    apex.install()
    yield
    apex.uninstall()


def steps(text, name, level, more):
    """Run a program; return its losses and, a row a step, its loss scales."""
    module = f"migrated_{name}"
    names = {"__name__": module, "__file__": str(EXAMPLES / f"{name}.py")}
    sys.modules[module] = type(sys)(module)  # dataclasses look it up
    try:
        exec(compile(text, name, "exec"), names)
        with contextlib.redirect_stdout(None):
            done = names["main"]([*STEPS[name], "--opt-level", level, *more])
    finally:
        del sys.modules[module]
    rows = [list(vars_of(step).values()) for step in done]
    losses = [[value for value in row if isinstance(value, float)] for row in rows]
    scales = [[value for value in row if isinstance(value, list)] for row in rows]
    return torch.tensor(losses, dtype=torch.float64), scales


before = functools.cache(steps)
"""The program as it was; both targets are compared with it."""


def vars_of(step):
    return step._asdict() if hasattr(step, "_asdict") else vars(step)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("name", STEPS)
def test_on_the_engine(name, level):
    text = (EXAMPLES / f"{name}.py").read_text()
    done = migrate(text)
    assert done.notes == ()
    assert "from apex" not in done.after
    expected, scales = before(text, name, level, OVERFLOW)
    found, scales_found = steps(done.after, name, level, OVERFLOW)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)
    assert scales_found == scales


@pytest.mark.parametrize("level", ["O0", "O1"])
@pytest.mark.parametrize("name", STEPS)
def test_on_torch(name, level):
    text = (EXAMPLES / f"{name}.py").read_text()
    done = migrate(text, "torch")
    reasons = [note.reason for note in done.notes]
    assert reasons[0].startswith("O2 and O3 kept the parameters in fp16; torch.amp leaves them")
    assert reasons[1].startswith("loss_scale=args.loss_scale is left out")
    assert len(reasons) == 2
    more = OVERFLOW if level == "O1" else ()  # without a scaler nothing is skipped
    expected, _ = before(text, name, level, more)
    found, _ = steps(done.after, name, level, more)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)
