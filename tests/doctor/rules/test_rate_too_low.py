"""When steps at a higher rate, taken after the run, show that the program's rate is too low."""

import pytest

from halfstep.doctor.record.trials import Trial
from halfstep.doctor.rules.movement.learning_rate_too_low import _is_better


@pytest.mark.parametrize(
    ("at_its_rate", "at_a_higher_rate", "better"),
    [
        (0.99, 0.7, True),
        (0.99, 0.95, False),  # hardly better: there is nothing to learn
        (0.8, 0.5, False),  # the program's own rate teaches, too
        (0.99, 1.6, False),  # the higher rate is too high
    ],
)
def test_only_a_higher_rate_teaches(at_its_rate, at_a_higher_rate, better):
    trial = Trial("LEARNING_RATE_TOO_LOW", 16, 1.0, at_its_rate, at_a_higher_rate)
    assert _is_better(trial) is better
    assert not _is_better(Trial("LEARNING_RATE_TOO_LOW", note="a step takes too long"))
