"""The schedule of a loss scale."""

import pickle

import pytest
import torch

from halfstep.apex.amp.scaler import LossScaler


def after(scaler, updates):
    """Return the scale after each update: "!" is one with an overflow, "." one without."""
    scales = []
    for update in updates:
        overflow = update == "!"
        scaler.clear_overflow_state()
        scaler.unscale_([torch.tensor([float("inf") if overflow else 1.0])])
        assert scaler.update_scale() is (overflow and scaler.dynamic)
        scales.append(scaler.loss_scale())
    return scales


def test_it_halves_on_overflow_and_doubles_after_a_window():
    scaler = LossScaler("dynamic", scale_window=3)
    scales = after(scaler, "!....!...")
    thousands = [32, 32, 32, 64, 64, 32, 32, 32, 64]
    assert scales == [1024.0 * k for k in thousands]


def test_the_window_is_two_thousand():
    scaler = LossScaler("dynamic")
    assert after(scaler, "." * 1999)[-1] == 2.0**16
    assert scaler._unskipped == 1999
    assert after(scaler, ".") == [2.0**17]
    assert scaler._unskipped == 0


def test_it_stays_within_its_bounds():
    assert LossScaler("dynamic", max_loss_scale=8.0).loss_scale() == 8.0
    scaler = LossScaler("dynamic", scale_window=1, max_loss_scale=2.0**17, min_loss_scale=2.0**15)
    assert after(scaler, "..") == [2.0**17] * 2
    assert after(scaler, "!!!!") == [2.0**16, 2.0**15, 2.0**15, 2.0**15]


def test_it_never_reaches_zero_and_says_when_it_cannot_help(capsys):
    scaler = LossScaler("dynamic")
    scales = after(scaler, "!" * 2000)
    assert scales[:20] == [2.0 ** (15 - i) for i in range(20)]
    assert scales[-1] == 2.0**-10
    assert (
        "at its floor, 0.000976562, and gradients are still not finite" in capsys.readouterr().out
    )


def test_a_static_scale_counts_but_stays():
    scaler = LossScaler(128.0)
    assert after(scaler, "!.") == [128.0, 128.0]
    assert scaler._unskipped == 2


def test_gradients_of_any_format_are_divided():
    scaler = LossScaler(4.0)
    grads = [torch.tensor([8.0]), torch.tensor([8.0]).double(), torch.tensor([8.0]).half()]
    scaler.unscale_(grads)
    assert [grad.item() for grad in grads] == [2.0, 2.0, 2.0]


def test_a_program_may_put_a_buffer_of_its_own():
    scaler = LossScaler("dynamic")
    scaler._overflow_buf = torch.tensor([1], dtype=torch.int32)
    assert scaler.update_scale()
    scaler.clear_overflow_state()
    assert not scaler.update_scale()


def test_a_pickle_of_apex_loads():
    state = {
        "dynamic": True,
        "_loss_scale": 2.0,
        "_max_loss_scale": 16.0,
        "_min_loss_scale": None,
        "_scale_seq_len": 1,
        "_unskipped": 0,
        "_has_overflow": False,
        "_overflow_buf": None,
    }
    scaler = LossScaler.__new__(LossScaler)
    scaler.__setstate__(state)
    assert after(scaler, ".!") == [4.0, 2.0]
    assert pickle.loads(pickle.dumps(scaler)).loss_scale() == 2.0


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_overflow_of_a_static_scale_goes_unseen(scale):
    scaler = LossScaler(scale)
    scaler.unscale_([torch.tensor([float("nan")])])
    assert not scaler.update_scale()
