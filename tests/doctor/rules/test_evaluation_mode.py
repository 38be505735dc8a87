"""What is said of a model that is trained in evaluation mode, and how certain it is."""

from __future__ import annotations

import pytest

from doctor.rules.watched import watched
from halfstep.doctor import diagnose


def test_training_in_evaluation_mode_names_the_evaluation_and_counts_the_steps() -> None:
    finding = diagnose(watched("LEFT_IN_EVALUATION_MODE", "broken", errors=())).verdicts[0].finding
    assert "norms use their running statistics" in finding.summary
    assert "dropout is off" not in finding.summary
    assert finding.facts[0] == "8 of 12 training steps of Sequential were in evaluation mode"
    assert finding.site is not None
    assert finding.site.text == "model(images)"


@pytest.mark.parametrize(
    ("name", "confidence"),
    [("broken", "likely"), ("broken_with_another_optimizer_in_each_epoch", "possible")],
)
def test_a_new_optimizer_makes_evaluation_mode_less_certain_to_be_wrong(name, confidence) -> None:
    evidence = watched("LEFT_IN_EVALUATION_MODE", name, errors=())
    assert diagnose(evidence).verdicts[0].finding.confidence == confidence
