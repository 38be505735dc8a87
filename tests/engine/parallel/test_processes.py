"""Several gloo processes under the engine, and one process that goes on where they stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from engine.tiny import differences
from halfstep.engine import load_sharded

from . import nets, processes
from .checks_ddp import floats, relative
from .checks_fsdp import SAVED, adamw_engine, everything, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", processes.checks(2))
def test_two_processes(two: dict[str, str], name: str) -> None:
    assert not two[name], two[name]


@pytest.mark.parametrize("name", processes.checks(4))
def test_four_processes(four: dict[str, str], name: str) -> None:
    assert not four[name], four[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "name"), [(world, name) for world in (2, 4) for name in processes.more_checks(world)]
)
def test_at_length(at_length: dict[int, dict[str, str]], world: int, name: str) -> None:
    assert not at_length[world][name], at_length[world][name]


@pytest.mark.parametrize("recipe", SAVED)
@pytest.mark.usefixtures("two")
def test_a_checkpoint_of_two_resumes_in_one(directory: Path, recipe: str) -> None:
    where = directory / f"{recipe}-2"
    seen = torch.load(where / "seen.pt", weights_only=True)
    with adamw_engine(recipe, sharded=False) as engine:
        assert load_sharded(where, engine) == {"epoch": 3}
        assert not differences(everything(engine), seen["now"])
        run(engine, nets.batches(6, recipe)[3:], 0, 1)
        found = floats(nets.weights(engine))
    bound = 1e-9 if recipe.startswith("fp64") else 0.05
    assert relative(found, floats(seen["went_on"]["weights"])) < bound


def test_half_a_checkpoint_is_refused(tmp_path: Path) -> None:
    said = r"not a complete checkpoint: \.metadata or rest\.pt"
    with adamw_engine("fp64", sharded=False) as engine, pytest.raises(ValueError, match=said):
        load_sharded(tmp_path, engine)
