"""Tests of the text about a program in which nothing was found."""

from __future__ import annotations

import pytest
import torch

from halfstep.doctor import Watch
from halfstep.doctor.record import Ending, Evidence, GradientAgreement, Precision
from halfstep.doctor.report.diagnose import diagnose


@pytest.mark.parametrize(
    ("flushed", "ending"),
    [
        (0.45, "45.0% of a gradient to 0; in head.weight, the norm of these elements is 0.20% of"),
        (0.003, "0.3% of a gradient to 0"),
    ],
)
def test_headroom_says_how_small_the_lost_elements_are(flushed: float, ending: str) -> None:
    lost = GradientAgreement("head.weight", 1.0, flushed, lost=0.002, norm=1.0, exact_norm=1.0)
    kept = GradientAgreement("body.weight", 1.0, 0.0, lost=0.0, norm=3.0, exact_norm=3.0)
    precision = Precision(iteration=3, agreements=(kept, lost), bits_to_overflow=5.0)
    said = diagnose(Evidence(signals=frozenset({"precision"}), precision=precision)).headroom
    assert ending in said
    assert ("in head.weight" in said) == (flushed > 0.01)


@pytest.mark.parametrize(("bits", "said"), [(5.25, "is 5.2 bits below"), (120.0, "no half-precis")])
def test_headroom_far_from_overflow_has_no_figure(bits: float, said: str) -> None:
    precision = Precision(iteration=3, bits_to_overflow=bits)
    found = diagnose(Evidence(signals=frozenset({"precision"}), precision=precision)).headroom
    assert said in found
    assert found.endswith("underflow sets no element of a gradient to 0")


@pytest.mark.parametrize("use", ["fp32", "autocast", "parameters", "cast"])
def test_a_program_in_fp32_is_not_told_to_run_in_fp32(use: str) -> None:
    model = torch.nn.Linear(4, 2)
    with Watch() as watch:
        if use == "parameters":
            model.bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            inputs = torch.randn(8, 4).to(model.weight.dtype)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=use == "autocast"):
                loss = model(inputs).float().square().mean()
            if use == "cast":
                loss = (loss.bfloat16() + 1).float()
            loss.backward()
            optimizer.step()
    found = diagnose(watch.close())
    assert not found.verdicts
    assert ("run the program in fp32" in found.advice) == (use != "fp32")
    assert ("the precision is not the cause" in found.advice) == (use == "fp32")


def test_a_program_that_ended_with_its_own_error_gets_no_advice() -> None:
    assert "run the program in fp32" in diagnose(Evidence()).advice
    ended = Evidence(signals=frozenset({"ending"}), ending=Ending(kind="KeyError"))
    assert diagnose(ended).advice == ""


def test_of_several_models_parameters_have_the_names_of_the_program() -> None:
    watch = Watch()
    with watch:
        torch.manual_seed(0)
        critic, maker = torch.nn.Linear(3, 1), torch.nn.Linear(2, 3)
        lost = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD([*critic.parameters(), *lost.parameters()], lr=0.1)
        other = torch.optim.SGD(maker.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            other.zero_grad()
            with torch.no_grad():
                features = lost(torch.ones(4, 3))
            critic(maker(torch.ones(4, 2)) + features).sum().backward()
            optimizer.step()
            other.step()
    (verdict,) = diagnose(watch.close()).verdicts
    assert verdict.code == "PART_WITHOUT_GRADIENT"
    assert verdict.finding.facts == ("without a gradient: lost.weight, lost.bias",)
