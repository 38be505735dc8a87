"""The format of `amp.state_dict`."""

from collections import OrderedDict

import pytest
import torch
from torch.optim import SGD

from halfstep.apex import amp

from .tiny import Weights, backward, overflow, scale


def start(num_losses):
    model = Weights(1.0)
    return amp.initialize(
        model,
        SGD(model.parameters(), 0.1),
        opt_level="O2",
        num_losses=num_losses,
        verbosity=0,
        max_loss_scale=2.0**10,
    )


def test_it_holds_scales_and_counts_alone():
    model, optimizer = start(2)
    overflow(model, optimizer, loss_id=0)
    backward(model(torch.tensor(0.1)), optimizer, loss_id=1)
    assert amp.state_dict() == OrderedDict(
        loss_scaler0={"loss_scale": 2.0**9, "unskipped": 0},
        loss_scaler1={"loss_scale": 2.0**10, "unskipped": 1},
    )
    assert type(amp.state_dict()) is OrderedDict
    mine = {"epoch": 3}
    assert amp.state_dict(mine) is mine
    assert list(mine) == ["epoch", "loss_scaler0", "loss_scaler1"]


def test_it_loads(capsys):
    start(2)
    amp.load_state_dict(
        {
            "loss_scaler0": {"loss_scale": 4.0, "unskipped": 7},
            "loss_scaler1": {"loss_scale": 8.0, "unskipped": 9},
        }
    )
    assert (scale(0), scale(1)) == (4.0, 8.0)
    assert [s._unskipped for s in amp._amp_state.loss_scalers] == [7, 9]
    assert capsys.readouterr().out == ""


def test_another_number_of_losses_is_printed(capsys):
    start(1)
    amp.load_state_dict(
        {f"loss_scaler{i}": {"loss_scale": 2.0**i, "unskipped": i} for i in range(2)}
    )
    printed = capsys.readouterr().out
    assert "Warning: state_dict contains 2 entries, while 1 loss_scalers are used" in printed
    assert "Skipping loss_scaler[1], since num_losses was set to 1" in printed
    assert scale() == 1.0


def test_other_keys_are_refused():
    start(1)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*'model'.*amp.load_state_dict"):
        amp.load_state_dict({"model": {}})


def test_a_scale_that_had_fallen_to_zero_is_mended():
    start(1)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 0.0, "unskipped": 0}})
    assert scale() == 2.0**-10


def test_a_program_that_has_not_initialized_amp_saves_nothing():
    assert amp.state_dict() == {}
    start(1)
    amp.initialize(Weights(1.0), enabled=False)
    assert amp.state_dict() == {}
