"""Checkpoints of other releases: what is missing is made, what is not known is left alone."""

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.store import checkpoint, migration

METER_1 = {
    "loss_sum": 3.0, "hits": 2, "images": 4, "seen": 4, "seconds": 0.5, "windows": 1,
    "bad": [1, None], "window": [1.5, 1, 2], "window_finite": False,
}  # fmt: skip


def of_release_1(**more):
    """What release 0.1.0 has written where two processes train."""
    rank = {"meter": METER_1, "nonfinite": {"finite": True, "statistics": [torch.ones(2)]}}
    progress = {"epochs": 1, "waiting": 2, "target": 0.5, "unchanged_shares": [0.25], **rank}
    return {"progress": {**progress, "others": [{"rng": {"a": 1}, **rank}]}, "rng": {}, **more}


def test_each_observer_has_what_was_in_the_progress_of_all():
    state = migration.migrated(of_release_1())
    own, other = state["observers"], state["others"][0]
    assert state["progress"] == {"epochs": 1}
    assert other["rng"] == {"a": 1}
    for observers in (own, other["observers"]):
        assert observers["meter"]["window"] == [1.5, 1, 2]
        assert observers["meter"].keys().isdisjoint({"bad", "windows", "window_finite"})
        assert observers["nonfinite_steps"] == {"windows": 1, "bad": [1, None], "finite": False}
        assert observers["nonfinite"] == {"finite": True}
        assert torch.equal(observers["statistics"]["saved"][0], torch.ones(2))
        assert observers["early_stopping"] == {"waiting": 2, "target": 0.5}
        assert observers["probes"] == {"unchanged_shares": [0.25]}


def rewritten(file, **changes):
    """Write a checkpoint anew with other content, as another release would have."""
    state = torch.load(file, weights_only=True) | changes
    checkpoint._write({name: value for name, value in state.items() if value is not ...},
                      file.open("wb"))  # fmt: skip


@pytest.mark.parametrize("changes", [{"a_new_field": 3}, {"others": ...}, {"observers": ...}])
def test_a_field_more_or_less_is_no_matter(tmp_path, example, changes):
    file = tmp_path / "step.pt"
    checkpoint.save(file, example())
    rewritten(file, **changes)
    assert checkpoint.load(file).step == 3


def test_a_later_format_is_named(tmp_path, example):
    file = tmp_path / "step.pt"
    checkpoint.save(file, example())
    rewritten(file, format=9)
    with pytest.raises(UserError, match=r"has format 9 of a later halfstep.*install that release"):
        checkpoint.load(file)


def test_a_number_that_is_none_is_refused(tmp_path, example):
    file = tmp_path / "step.pt"
    checkpoint.save(file, example())
    rewritten(file, format="2")
    with pytest.raises(UserError, match="is not a checkpoint of halfstep"):
        checkpoint.load(file)
