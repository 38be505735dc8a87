"""What rules about states, layers and tensors of modules suggest is changed code of the program."""

from __future__ import annotations

import pytest

from doctor.rules.test_variants import watched
from halfstep.doctor import diagnose


@pytest.mark.parametrize(
    ("code", "name", "lines"),
    [
        (
            "STATE_NOT_LOADED",
            "broken",
            (
                (
                    '+ state = {name.removeprefix("encoder."): each for name, each in '
                    'state.items() if name.startswith("encoder.")}'
                ),
                "  encoder.load_state_dict(state, strict=False)",
            ),
        ),
        (
            "STATE_NOT_LOADED",
            "broken_without_a_prefix",
            (
                '+ state = {"encoder." + name: each for name, each in state.items()}',
                "  model.load_state_dict(state, strict=False)",
            ),
        ),
        (
            "STATE_NOT_LOADED",
            "broken_by_the_whole_checkpoint",
            (
                '+ checkpoint = checkpoint["model"]',
                "  model.load_state_dict(checkpoint, strict=False)",
            ),
        ),
        (
            "STATE_KEPT_BY_REFERENCE",
            "broken",
            ("- best = model.state_dict()", "+ best = copy.deepcopy(model.state_dict())"),
        ),
        (
            "LAYERS_SHARE_WEIGHTS",
            "broken",
            (
                "- train(Stack(nn.ModuleList([Block(WIDTH)] * DEPTH)))",
                "+ train(Stack(nn.ModuleList([Block(WIDTH) for _ in range(DEPTH)])))",
            ),
        ),
        (
            "PARAMETER_NOT_REGISTERED",
            "broken",
            (
                "- self.places = nn.Parameter(torch.zeros(1, 1)).repeat(1, 6)",
                "+ self.places = nn.Parameter(torch.zeros(1, 1).repeat(1, 6))",
            ),
        ),
        (
            "WEIGHTS_WRITTEN_IN_BACKWARD",
            "broken",
            ("- parameter.clamp_(-0.05, 0.05)", "+ parameter.grad.clamp_(-0.05, 0.05)"),
        ),
        (
            "WEIGHTS_WRITTEN_IN_BACKWARD",
            "broken_by_an_assignment_of_the_data",
            ("- param.data = param.data * factor", "+ param.grad = param.grad * factor"),
        ),
        (
            "WEIGHTS_WRITTEN_IN_BACKWARD",
            "broken_in_an_object",
            ("- param.data *= 0.9", "+ param.grad *= 0.9"),
        ),
        (
            "NORM_MOMENTUM_REVERSED",
            "broken_by_a_constant",
            (
                "- train(network(nn.BatchNorm1d(16, momentum=KEPT)))",
                "+ train(network(nn.BatchNorm1d(16, momentum=1 - KEPT)))",
            ),
        ),
        (
            "NORM_MOMENTUM_REVERSED",
            "broken_by_position",
            (
                "- train(network(nn.BatchNorm1d(16, 1e-3, 0.9)))",
                "+ train(network(nn.BatchNorm1d(16, 1e-3, 0.1)))",
            ),
        ),
        (
            "NORM_MOMENTUM_REVERSED",
            "broken_by_an_attribute",
            ("- each.momentum = 0.997", "+ each.momentum = 0.003"),
        ),
        (
            "RATES_SHARE_VARIABLE",
            "broken_in_an_argument",
            (
                "- train([lambda step: FACTORS[number] * shape(step) for number in (0, 1)])",
                (
                    "+ train([lambda step, number=number: FACTORS[number] * shape(step) for number "
                    "in (0, 1)])"
                ),
            ),
        ),
    ],
)
def test_the_change(code: str, name: str, lines: tuple[str, ...]) -> None:
    assert diagnose(watched(code, name, errors=())).verdicts[0].finding.change == lines


def test_weights_that_stay_because_their_state_was_kept_without_a_copy() -> None:
    code = "WEIGHTS_LEFT_AFTER_EVALUATION"
    diagnosis = diagnose(watched(code, "broken_with_references_in_place_of_copies", errors=()))
    assert [each.code for each in diagnosis.verdicts] == [code]
    assert diagnosis.consequences == ("STATE_KEPT_BY_REFERENCE",)
    assert diagnosis.verdicts[0].finding.change == (
        "@ weights_left_after_evaluation.py:44",
        "- kept = model.state_dict()",
        "+ kept = copy.deepcopy(model.state_dict())",
    )


@pytest.mark.parametrize(
    ("code", "name", "confidence"),
    [
        ("NORM_MOMENTUM_REVERSED", "broken", "likely"),
        ("NORM_MOMENTUM_REVERSED", "broken_with_large_batches", "possible"),
        ("WEIGHTS_WRITTEN_IN_BACKWARD", "broken", "likely"),
        ("WEIGHTS_WRITTEN_IN_BACKWARD", "broken_without_an_effect_so_far", "possible"),
        ("WEIGHTS_CHANGED_BY_MODE", "broken", "likely"),
    ],
)
def test_what_does_no_harm_yet_is_only_possible(code: str, name: str, confidence: str) -> None:
    verdicts = diagnose(watched(code, name, errors=())).verdicts
    assert [(each.code, each.finding.confidence) for each in verdicts] == [(code, confidence)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken", "self.weight.data += self.delta().detach()"),
        ("broken_by_the_model", "self.merge()"),
        ("broken_by_fusing", "layer.weight.mul_(factor[:, None])"),
    ],
)
def test_the_line_that_changes_weights_is_named(name: str, line: str) -> None:
    finding = diagnose(watched("WEIGHTS_CHANGED_BY_MODE", name, errors=())).verdicts[0].finding
    assert finding.site.text == line
