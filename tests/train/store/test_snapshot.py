import pytest
import torch
from torch import nn

from halfstep.train.store import checkpoint
from halfstep.train.store.snapshot import LEAST_BYTES, Copies


def tensors_of_all_kinds():
    """Views of one storage, tied weights, halves, nothing, strides, a gap in memory."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    flat = torch.arange(24.0)
    return {
        "model": model.state_dict(),  # an OrderedDict with metadata of its own
        "averaged": {"half": torch.randn(3).bfloat16(), "turned": torch.randn(2, 3, 4, 4)[:, 1:]},
        "engine": {
            "views": (flat[:8].view(2, 4), flat[16:], flat.view(4, 6).t()),
            "empty": [torch.empty(0), torch.empty(0, dtype=torch.int64)],
            "number": torch.tensor(3),
            "of_a_model": nn.Linear(2, 2).weight.detach().requires_grad_(),
            "last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        },
    }


def tensors_in(state):
    values = (*state.model.values(), *state.averaged.values(), *state.engine["views"])
    return [
        *values,
        *state.engine["empty"],
        *(state.engine[name] for name in ("number", "of_a_model", "last")),
    ]


def written(state, file):
    checkpoint.save(file, state)
    return file.read_bytes()


@pytest.mark.usefixtures("in_background")
def test_file_of_a_copy_is_the_same_byte_by_byte(example, tmp_path):
    state = example(**tensors_of_all_kinds())
    copied = Copies().of(state)
    assert written(copied, tmp_path / "copy.pt") == written(state, tmp_path / "one.pt")
    assert copied.model._metadata == state.model._metadata


@pytest.mark.usefixtures("in_background")
def test_copy_stays_as_it_was_while_everything_changes(example, tmp_path):
    state = example(**tensors_of_all_kinds(), schedule={"steps": [1, 2]})
    before, copied = written(state, tmp_path / "before.pt"), Copies().of(state)
    with torch.no_grad():
        for each in (*state.model.values(), *state.averaged.values(), *state.engine["views"]):
            each.add_(1)
    state.schedule["steps"].append(3)
    state.model["another"] = torch.ones(1)
    state.model._metadata.clear()
    assert written(copied, tmp_path / "copy.pt") == before


@pytest.mark.usefixtures("in_background")
def test_next_copy_is_made_in_the_memory_of_the_one_before(example, tmp_path):
    copies = Copies()
    first = copies.of(example(**tensors_of_all_kinds()))
    places = {each.untyped_storage().data_ptr() for each in tensors_in(first)}
    del first
    state = example(**tensors_of_all_kinds())
    second = copies.of(state)
    assert {each.untyped_storage().data_ptr() for each in tensors_in(second)} == places
    assert written(second, tmp_path / "second.pt") == written(state, tmp_path / "two.pt")
    state.engine["window"] = torch.randn(7)  # gradients of a half-filled window
    third = copies.of(state)
    assert third.engine["window"].equal(state.engine["window"])
    assert written(third, tmp_path / "third.pt") == written(state, tmp_path / "three.pt")


def test_what_is_small_or_not_plain_is_not_copied(example):
    size = LEAST_BYTES // 4
    assert Copies().of(example(model={"weight": torch.zeros(size)})) is not None
    assert Copies().of(example(model={"weight": torch.zeros(size - 1)})) is None
    half = torch.zeros(size // 2 + 1)
    tied = dict.fromkeys(("one", "two"), half)
    assert Copies().of(example(model=tied)) is None, "what is written once counts once"
    for other in (
        nn.Parameter(torch.zeros(size)),
        torch.zeros(size).to_sparse(),
        torch.zeros(size, dtype=torch.complex64).conj(),
    ):
        assert Copies().of(example(model={"weight": other})) is None
