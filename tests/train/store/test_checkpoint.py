import io
import pickle
import zipfile
from dataclasses import replace

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.store import checkpoint


def test_checkpoint_comes_back_as_it_was(tmp_path, example):
    file = checkpoint.path(tmp_path, "last")
    checkpoint.save(file, example())
    loaded = checkpoint.load(file)
    assert torch.equal(loaded.model["weight"], torch.arange(4.0))
    assert replace(loaded, model={}) == replace(example(), model={})
    assert [each.name for each in file.parent.iterdir()] == ["last.pt"]


def test_validated_weights_are_the_averages_where_there_are_some(example):
    assert torch.equal(example().weights["weight"], torch.arange(4.0))
    averaged = {"weight": torch.zeros(4)}
    assert example(averaged=averaged).weights is averaged


def test_any_torch_reads_the_file_and_any_zip_tool(tmp_path, example):
    file = tmp_path / "x.pt"
    checkpoint.save(file, example())
    assert torch.load(file, weights_only=True)["step"] == 3
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None


def test_no_flipped_bit_changes_what_is_loaded_and_every_lost_byte_is_noticed(tmp_path, example):
    file = tmp_path / "x.pt"
    checkpoint.save(file, example())
    whole = file.read_bytes()
    before = checkpoint.load(file)
    noticed = 0
    for place in range(0, len(whole), 37):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            loaded = checkpoint.load(file)
        except UserError:
            noticed += 1
            continue
        # What nothing reads, such as padding, may differ.
        assert torch.equal(loaded.model["weight"], before.model["weight"])
        assert replace(loaded, model={}) == replace(before, model={})
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert noticed >= sum(part.file_size for part in archive.infolist()) // 37
    for left in (len(whole) - 1, len(whole) // 2, 90, 1):
        file.write_bytes(whole[:left])
        with pytest.raises(UserError, match="not a checkpoint of halfstep"):
            checkpoint.load(file)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, example):
    witness = tmp_path / "ran"

    class Malicious:
        def __reduce__(self):
            return (open, (str(witness), "w"))

    torch.save({"model": Malicious()}, tmp_path / "zip.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Malicious()))
    # One whose author knows how to make a checksum.
    checkpoint.save(tmp_path / "signed.pt", example(model={"weight": Malicious()}))
    for name in ("zip.pt", "raw.pt", "signed.pt"):
        with pytest.raises(UserError, match="is damaged or not a checkpoint"):
            checkpoint.load(tmp_path / name)
    assert not witness.exists()


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path, example):
    file = tmp_path / "x.pt"
    checkpoint.save(file, example())
    whole = file.read_bytes()
    torch.save({"state_dict": {}}, tmp_path / "foreign.pt")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    contents = [b"", b"no", whole[: len(whole) // 2], (tmp_path / "foreign.pt").read_bytes()]
    for content in [*contents, (tmp_path / "tensor.pt").read_bytes()]:
        file.write_bytes(content)
        with pytest.raises(UserError, match="not a checkpoint of halfstep") as caught:
            checkpoint.load(file)
        assert "\n" not in str(caught.value)


def test_missing_checkpoint_says_that_no_epoch_was_finished(tmp_path, example):
    with pytest.raises(UserError, match="the run has finished no epoch"):
        checkpoint.load(checkpoint.path(tmp_path, "best"))
