"""The state that programs reach for."""

import torch
from torch.optim import SGD

from halfstep.apex import amp
from halfstep.apex.amp._amp_state import AmpState, maybe_print

from .tiny import Weights


def test_before_initialize_it_has_what_apex_has():
    state = AmpState()
    assert vars(state) == {
        "hard_override": False,
        "allow_incoming_model_not_fp32": False,
        "verbosity": 1,
    }


def test_programs_find_it_under_its_name():
    amp.initialize(Weights(1.0), opt_level="O1", num_losses=2, verbosity=0)
    state = amp._amp_state
    assert state.opt_properties.opt_level == "O1"
    assert [scaler.loss_scale() for scaler in state.loss_scalers] == [65536.0] * 2
    assert state.loss_scalers[0]._loss_scale == 65536.0
    assert state.handle.is_active()
    assert (state.verbosity, state.min_loss_scale, state.max_loss_scale) == (0, None, 2.0**24)


def test_master_params_are_those_of_every_group():
    one, two = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([{"params": [one]}, {"params": [two]}], 0.1)
    found = amp.master_params(optimizer)
    assert next(found) is one
    assert next(found) is two


def test_verbosity_silences(capsys):
    maybe_print("said")
    amp._amp_state.verbosity = 0
    maybe_print("not said")
    assert capsys.readouterr().out == "said\n"
