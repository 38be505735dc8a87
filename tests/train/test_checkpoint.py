import pickle

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train import checkpoint
from halfstep.train.checkpoint import Checkpoint


def example():
    state = {"weight": torch.arange(4.0)}
    return Checkpoint(state, {"steps": 3, "scale": 2.0}, epoch=1, step=3, loss=0.5, accuracy=0.75)


def test_checkpoint_comes_back_as_it_was(tmp_path):
    file = checkpoint.path(tmp_path, "last")
    checkpoint.save(file, example())
    loaded = checkpoint.load(file)
    assert torch.equal(loaded.model["weight"], torch.arange(4.0))
    assert (loaded.engine, loaded.epoch, loaded.step) == ({"steps": 3, "scale": 2.0}, 1, 3)
    assert (loaded.loss, loaded.accuracy) == (0.5, 0.75)
    assert [each.name for each in file.parent.iterdir()] == ["last.pt"]


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    witness = tmp_path / "ran"

    class Malicious:
        def __reduce__(self):
            return (open, (str(witness), "w"))

    torch.save({"model": Malicious()}, tmp_path / "zip.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Malicious()))
    for name in ("zip.pt", "raw.pt"):
        with pytest.raises(UserError, match="is damaged or no checkpoint"):
            checkpoint.load(tmp_path / name)
    assert not witness.exists()


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path):
    file = tmp_path / "x.pt"
    checkpoint.save(file, example())
    whole = file.read_bytes()
    torch.save({"state_dict": {}}, tmp_path / "foreign.pt")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    contents = [b"", b"no", whole[: len(whole) // 2], (tmp_path / "foreign.pt").read_bytes()]
    for content in [*contents, (tmp_path / "tensor.pt").read_bytes()]:
        file.write_bytes(content)
        with pytest.raises(UserError, match="no checkpoint of halfstep") as caught:
            checkpoint.load(file)
        assert "\n" not in str(caught.value)


def test_missing_checkpoint_says_that_no_epoch_was_finished(tmp_path):
    with pytest.raises(UserError, match="the run has finished no epoch"):
        checkpoint.load(checkpoint.path(tmp_path, "best"))
