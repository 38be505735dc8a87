"""Other shapes of the same causes get the same verdict; what only looks like them gets none.

A module of `programs` may have more than its two: functions named `broken_...` and `healthy_...`.
The first of each run every time, and all of them in long campaigns.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from doctor.loops import Around, batches, classifier, half_steps, loss_of
from doctor.rules.test_rules import RULES, codes, missing_in_torch
from doctor.rules.watched import PROGRAMS, watch_anew, watched
from halfstep import cpu_half
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.remedies import squares_in_fp32

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet


FIRST = 2
"""So many of each kind of a cause run every time, in the order of the file."""


def variants(prefix: str) -> list[ParameterSet]:
    return [
        pytest.param(code, name, marks=() if place < FIRST else pytest.mark.slow)
        for code, module in sorted(PROGRAMS.items())
        for place, name in enumerate(each for each in vars(module) if each.startswith(prefix))
    ]


@pytest.mark.parametrize(("code", "name"), variants("broken_"))
def test_another_shape_of_the_cause_gets_its_verdict(code: str, name: str) -> None:
    assert codes(watched(code, name, errors=Exception)) == [code]


@pytest.mark.parametrize(("code", "name"), variants("healthy_"))
def test_what_only_looks_like_the_cause_gets_none(code: str, name: str) -> None:
    assert codes(watched(code, name, errors=())) == []


@pytest.mark.parametrize(
    ("code", "name", "right"),
    [
        ("MEAN_SQUARE_OVERFLOW", "product_of_two", "ACTIVATIONS_TOO_LARGE"),
        ("MEAN_SQUARE_OVERFLOW", "cube", "SCALE_COLLAPSED"),
        ("DIVISION_BY_ZERO", "overflow_beside_zeros", "SCALE_COLLAPSED"),
        ("DIVISION_BY_ZERO", "norm_with_a_negative_variance", "SCALE_COLLAPSED"),
        ("OUTSIDE_DOMAIN", "powers_of_a_negative_number", "NOT_FINITE"),
        ("UPDATE_NOT_FINITE", "gradient_that_no_sample_contains", "NOT_FINITE"),
        ("TARGETS_OUT_OF_RANGE", "rate_that_is_too_high", "LEARNING_RATE_TOO_HIGH"),
        ("TARGETS_OUT_OF_RANGE", "nan_among_the_targets", "CORRUPT_BATCH"),
        ("OUTSIDE_DOMAIN", "powers_of_a_negative_fraction", "NOT_FINITE"),
        ("CTC_TARGET_TOO_LONG", "label_that_is_masked", "SCALE_COLLAPSED"),
        ("UPDATE_SKIPPED", "drops_gradients_that_no_scale_would_help", "NOT_FINITE"),
        ("FOUND_INF_IGNORED", "weights_of_which_one_is_nan", "PARAMETERS_NOT_FINITE"),
    ],
)
def test_another_cause_in_the_same_operator_is_told_apart(code, name, right) -> None:
    assert codes(watched(code, name, errors=())) == [right]


@pytest.mark.parametrize(
    ("code", "name", "said"),
    [
        ("SCHEDULE_PAST_ITS_END", "broken_line_below_zero", "keep the rate at 0"),
        ("LEARNING_RATE_TOO_HIGH", "broken_by_a_weight_decay", "weight_decay=0.005"),
        ("LEARNING_RATE_TOO_HIGH", "broken_beside_a_weight_decay", "lr=2 "),
        ("SCALE_COLLAPSED", "broken_by_a_gradient_above_the_maximum_of_fp16", "above fp16's max"),
        ("LOG_OF_ZERO", "broken_in_a_softmax_by_hand", "functional.cross_entropy(logits"),
        ("REPEATED_EIGENVALUES", "broken", "torch.linalg.eigvalsh("),
        ("REPEATED_EIGENVALUES", "broken_in_singular_vectors", "torch.linalg.svdvals("),
        ("REPEATED_EIGENVALUES", "broken_by_a_singular_value_of_0", "none is 0"),
        ("PARAMETERS_NOT_FINITE", "broken_by_a_division_before_the_first_step", "writes to"),
        ("UPDATE_NOT_FINITE", "broken_by_the_rate_of_the_second_group", "# inf in step 3"),
        ("UPDATE_NOT_FINITE", "broken_by_a_rate_near_the_maximum_of_fp32", "lr=1e+38"),
        ("UPDATE_NOT_FINITE", "broken_by_a_division_after_the_step", "or other code that writes"),
        ("UPDATE_NOT_FINITE", "broken_by_an_eps_that_is_the_sixth_argument", ", 0, 0, 0, 1e-8)"),
        ("COMPUTED_INPUT_NOT_FINITE", "broken_by_the_spread_of_one_sample", "correction=0"),
        ("DIVISION_BY_ZERO", "broken_by_a_norm_without_an_eps", "eps=1e-5"),
        ("UPDATE_SKIPPED", "broken_by_an_update_before_the_step", "+ scaler.update()"),
        ("POSITIONS_IN_HALF", "broken", "positions = torch.arange("),
        ("POSITIONS_IN_HALF", "broken_by_autocast", "+     angles = positions @ torch.tensor("),
        ("EPS_ROUNDS_TO_ZERO", "broken_in_one_of_two_lines", "+ def own(features, eps=1e-4):"),
        ("EPS_ROUNDS_TO_ZERO", "broken_in_a_deviation", ".std(-1, keepdim=True) + 1e-4)"),
        ("EPS_ROUNDS_TO_ZERO", "broken_in_a_cosine", "other, eps=1e-4)[:, None]"),
        ("EPS_ROUNDS_TO_ZERO", "broken_by_the_default_of_torch", "features, eps=1e-4)"),
        ("EPS_ROUNDS_TO_ZERO", "broken", ".half(), eps=1e-4)"),
        ("MASK_OVERFLOWS", "broken_by_a_product_with_a_constant", "to(scores.dtype) * -10000"),
        ("ACTIVATIONS_TOO_LARGE", "broken_by_a_cast_of_its_own", "self.factor.exp()"),
        ("OUTSIDE_DOMAIN", "broken_by_a_variance_that_cancels", "(x - mean).square().mean"),
        (
            "DIVISION_BY_ZERO",
            "broken_by_a_divisor_that_underflows_below_a_square",
            "compute the divisor in fp32",
        ),
        ("UPDATE_SKIPPED", "broken_without_any_update", "# once per step"),
        ("FULLY_MASKED_ROW", "broken_in_a_softmax_by_hand", "(scores == -torch.inf).all(-1,"),
        (
            "FULLY_MASKED_ROW",
            "broken_in_a_softmax_by_hand_over_another_dimension",
            "(scores == -torch.inf).all(-2,",
        ),
        ("MASK_OVERFLOWS", "broken_by_a_cast_of_the_module", "the buffer absent the constant"),
        ("MASK_OVERFLOWS", "broken_by_a_mask_that_the_loop_computes", "such as -1e4"),
        ("MASK_NOT_REPRESENTABLE", "broken", "such as -1e4 or"),
        ("MASK_NOT_REPRESENTABLE", "broken_on_a_diagonal", "+ row.detach().fill_diagonal_(-1e4)"),
        ("EXP_OVERFLOW", "broken_below_zero", ".clamp(-88, 88)"),
        ("OPTIMIZER_REBUILT", "broken", "not in each call of this function"),
        ("OPTIMIZER_REBUILT", "broken_with_adam_and_evaluations", "once, before the loop"),
        ("WEIGHTS_RESET", "broken_by_copies_for_an_evaluation", "once, before the first step"),
        ("SUM_OVERFLOW", "broken", ", dtype=torch.float32)"),
        ("MASK_OVERFLOWS", "broken", "scores = torch.where(mask"),
        ("EPS_ROUNDS_TO_ZERO", "broken_under_a_root", "keepdim=True) + 1e-4).sqrt()"),
        ("SCALER_STATE_NOT_RESTORED", "broken_by_one_for_each_epoch", "scaler = torch.amp.Grad"),
    ],
)
def test_the_change_fits_the_fault(code, name, said) -> None:
    finding = diagnose(watched(code, name, errors=Exception)).verdicts[0].finding
    assert any(said in line for line in finding.change)
    assert missing_in_torch(finding.change) == []


def test_an_argument_just_outside_the_domain_has_enough_digits() -> None:
    evidence = watched("OUTSIDE_DOMAIN", "broken_just_above_1", errors=())
    assert "its argument is 1.0000001" in diagnose(evidence).verdicts[0].finding.summary


def test_a_product_in_half_whose_rounding_error_reaches_the_argument_is_named() -> None:
    evidence = watched("OUTSIDE_DOMAIN", "broken_by_a_product_in_half_on_another_line", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert any(
        "from the result of mm in fp16 at outside_domain.py" in each for each in finding.facts
    )
    assert "    products = rows @ rows.T" in finding.change
    assert any("(squared + 1e-6).clamp(min=1e-6)" in each for each in finding.change)


@pytest.mark.parametrize("name", ["broken_by_arccosine", "broken_in_one_batch_without_a_scaler"])
def test_an_operator_in_half_whose_rounding_is_not_the_cause_is_not_named(name) -> None:
    evidence = watched("OUTSIDE_DOMAIN", name, errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert not any("is computed from the result" in each for each in finding.facts)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("NORM_STATISTICS_POISONED", "in step 2: a cast gets values up to"),
        ("PENALTY_ON_SCALED_GRADIENTS", "in 4 of 4 steps, autograd.grad()"),
    ],
)
def test_a_fact_says_where_and_how_often(code: str, said: str) -> None:
    finding = diagnose(watched(code, "broken", errors=())).verdicts[0].finding
    assert any(said in each for each in finding.facts), finding.facts


def test_statistics_are_poisoned_only_by_a_step_that_was_left_out() -> None:
    overflowed = watched("NORM_STATISTICS_IN_HALF", "broken_by_a_variance_above_fp16", errors=())
    assert any(model.overflowed_variances for model in overflowed.static.models)
    overflowed = replace(overflowed, evaluation=replace(overflowed.evaluation, bad=1))
    assert RULES["NORM_STATISTICS_POISONED"].judge(overflowed) is None

    evidence = watched("NORM_STATISTICS_POISONED", "broken", errors=())
    (model,) = evidence.static.models
    broken = replace(model, bad_parameters=("0.weight",))
    diverged = replace(evidence, static=replace(evidence.static, models=(broken, model)))
    assert RULES["NORM_STATISTICS_POISONED"].judge(evidence) is not None
    assert RULES["NORM_STATISTICS_POISONED"].judge(diverged) is None


def test_a_line_of_the_program_keeps_its_names() -> None:
    evidence = watched("OUTSIDE_DOMAIN", "broken_in_a_function_with_other_names", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert "- return optimizer.double(loss).log().mean()" in finding.change


@pytest.mark.parametrize("cpu_half_on", [False, True])
def test_where_a_cpu_has_no_half_kernel_the_note_names_one_that_works(cpu_half_on) -> None:
    torch.manual_seed(0)
    model = torch.nn.LSTM(6, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    context = cpu_half() if cpu_half_on else contextlib.nullcontext()
    with Watch() as watch, contextlib.suppress(RuntimeError):
        try:
            with context, torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(4, 2, 6))[0].float().mean()
            loss.backward()
            optimizer.step()
        except RuntimeError as error:
            watch.note_ending(error)
            raise
    evidence = watch.close()
    if not cpu_half_on and not evidence.ending.kind:
        pytest.skip("this CPU has an fp16 kernel for an LSTM")
    said = any(
        "train inside `with halfstep.cpu_half():`" in each for each in diagnose(evidence).notes
    )
    assert said != cpu_half_on


def test_half_precision_beside_an_autocast_that_is_off_is_checked() -> None:
    evidence = watched("LOSS_IN_FP16", "broken", errors=Exception)
    environment = replace(evidence.environment, autocast_off=True)
    said = diagnose(replace(evidence, environment=environment))
    assert not said.unchecked
    assert not any("to check half precision" in each for each in said.notes)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken_cleared_before_the_step", "optimizer.zero_grad(set_to_none=to_none)"),
        ("broken_by_a_loss_outside_the_graph", "without detach(), item() or torch.no_grad()"),
    ],
)
def test_why_there_are_no_gradients_decides_what_to_change(name: str, said: str) -> None:
    evidence = watched("NO_GRADIENTS", name, errors=Exception)
    finding = diagnose(evidence).verdicts[0].finding
    assert any(said in line for line in finding.change)


@pytest.mark.parametrize(
    ("name", "lost", "change"),
    [
        (
            "broken_cleared_before_the_step_without_a_scaler",
            "so the model does not train",
            "after scaler.step(optimizer) write optimizer.zero_grad(set_to_none=to_none)",
        ),
        (
            "broken_cleared_within_the_loop_over_optimizers",
            "so 2 parameters of SGD do not train",
            "move `model.zero_grad()` to after the loop over the optimizers",
        ),
        (
            "broken_cleared_between_the_steps_of_three_optimizers",
            "so 3 parameters of Adagrad and Adam do not train",
            "head.step() + model.zero_grad()",
        ),
    ],
)
def test_a_clearing_is_moved_behind_all_steps_that_need_the_gradients(name, lost, change) -> None:
    (verdict,) = diagnose(watched("NO_GRADIENTS", name)).verdicts
    assert verdict.finding.summary.endswith(lost)
    assert change in " ".join(" ".join(verdict.finding.change).split())


@pytest.mark.parametrize(
    ("name", "rounding"),
    [("broken", True), ("broken_in_the_branch_that_where_leaves_out", False)],
)
def test_an_argument_outside_the_domain_says_whether_rounding_is_the_cause(name, rounding) -> None:
    evidence = watched("OUTSIDE_DOMAIN", name, errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert any("rounding moved the argument" in fact for fact in finding.facts) == rounding
    assert any("torch.where(condition, x" in line for line in finding.change) != rounding


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("h = h / (h.pow(2).sum(-1) + 1e-8)", "h = h / (h.float().pow(2).sum(-1) + 1e-8)"),
        ("loss = ((out - x) ** 2).mean()", "loss = ((out - x).float() ** 2).mean()"),
        ("v = (x * x).mean()", "v = (x.float() * x.float()).mean()"),
        ("s = self.x.square().mean()", "s = self.x.float().square().mean()"),
        ("z = 2 * y**2", "z = 2 * y.float() ** 2"),
        ("z = y.square()  # y ** 2", "z = y.float().square()  # y ** 2"),
        ("z = x.pow(20)", ""),
        ("z = x ** 2.5", ""),
        ("loss = (h * h).mean() / n ** 2", ""),  # Which of the squares overflows?
        ("z = (a.x * x).mean()", ""),
        ("z = x * x.mean()", ""),
        ("z = norm(x)", ""),
    ],
)
def test_squares_of_a_line_are_put_into_fp32(line: str, changed: str) -> None:
    assert squares_in_fp32(line) == changed


def test_a_change_has_the_names_of_the_program() -> None:
    watch = Watch()
    with watch:
        net, grad_scaler = classifier(), torch.amp.GradScaler("cpu", init_scale=256.0)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for images, labels in batches(4):
            opt.zero_grad()
            total = loss_of(net, images, labels)
            grad_scaler.scale(total).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            grad_scaler.step(opt)
            grad_scaler.update()
    change = diagnose(watch.close()).verdicts[0].finding.change
    assert "+ grad_scaler.unscale_(opt)" in change


@pytest.mark.parametrize("like_cuda", [False, True])
def test_an_operator_that_is_fp32_on_cuda_is_said_to_be(like_cuda) -> None:
    watch = Watch()
    with watch, cpu_half() if like_cuda else contextlib.nullcontext():
        PROGRAMS["MEAN_SQUARE_OVERFLOW"].broken()
    diagnosis = diagnose(watch.close())
    said = any("autocast computes pow in half precision on this CPU" in n for n in diagnosis.notes)
    assert said != like_cuda
    assert bool(diagnosis.verdicts) != like_cuda


def test_a_sum_whose_format_the_program_chose_is_not_said_to_be_fp32_on_cuda() -> None:
    said = diagnose(watched("SUM_OVERFLOW", "broken", errors=())).notes
    assert not any("in fp32 on CUDA" in each for each in said)


def test_inputs_that_exceed_the_range_of_fp16_are_to_be_normalised() -> None:
    evidence = watched("ACTIVATIONS_TOO_LARGE", "broken_by_inputs_beyond_fp16", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert finding.change == ("normalise the inputs before the model: (inputs - mean) / std",)


def test_the_derivative_of_an_arccosine_is_not_called_one_at_zero() -> None:
    evidence = watched("ROOT_AT_ZERO", "broken_by_an_angle_of_zero", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert finding.summary.startswith("the derivative of acos at 1 and -1 is infinite")
    assert "clamp(-1 + 1e-6, 1 - 1e-6)" in finding.change[-1]


def test_a_scaler_that_is_not_saved_does_not_hide_a_bad_step() -> None:
    skipped = watched("NOT_FINITE", "broken_in_a_skipped_step", errors=())
    saves = watched("SCALER_NOT_SAVED", "broken", errors=()).saves
    assert codes(replace(skipped, saves=saves)) == ["SCALER_NOT_SAVED", "NOT_FINITE"]


def test_an_update_that_makes_inf_of_finite_gradients_is_named() -> None:
    evidence = watched("UPDATE_NOT_FINITE", "broken_by_an_update_in_fp16", errors=())
    finding = diagnose(evidence).verdicts[0].finding
    assert "of ByHand, although the gradients of this step are finite" in finding.summary
    assert 'recipe="o2"' in finding.change[-1]


def test_the_place_of_an_operator_is_a_line_of_the_program_inside_cpu_half() -> None:
    with cpu_half():
        evidence, _ = watch_anew("ACTIVATIONS_TOO_LARGE", "broken_where_a_division_hides_it")
    births = [birth for birth in evidence.births if birth.op == "aten.bmm"]
    assert births
    assert {Path(birth.site.file).name for birth in births} == {"activations_too_large.py"}


def test_the_optimizer_that_owns_the_parameter_is_named() -> None:
    name = "broken_by_the_optimizer_of_another_model"
    verdict = diagnose(watched("UPDATE_NOT_FINITE", name, errors=())).verdicts[0]
    assert "of Adam" in verdict.finding.summary
    assert verdict.finding.confidence == "certain"


def test_updates_by_hand_beside_an_unused_optimizer_are_not_judged() -> None:
    name = "updates_by_hand_beside_an_unused_optimizer"
    found = diagnose(watched("PARAMETERS_NOT_FINITE", name, errors=()))
    assert not found.verdicts
    assert "no optimizer made a step" in found.headline


def test_updates_by_hand_are_judged_by_their_losses() -> None:
    (verdict,) = diagnose(watched("PARAMETERS_NOT_FINITE", "updates_by_hand", errors=())).verdicts
    assert verdict.code == "LEARNING_RATE_TOO_HIGH"
    assert "at this learning rate" in verdict.finding.summary
    assert "the lines that update the weights" in verdict.finding.change[0]


def test_a_finite_loop_without_an_optimizer_is_said_to_be_checked_in_part() -> None:
    found = diagnose(watched("GRADIENTS_OVERFLOW", "healthy_updates_by_hand", errors=()))
    assert not found.verdicts
    assert "the updates were not checked" in found.headline


def test_weights_that_are_restored_at_the_end_are_not_called_finite() -> None:
    name = "broken_until_the_loop_restores_good_weights"
    summary = diagnose(watched("NOT_FINITE", name, errors=())).verdicts[0].finding.summary
    assert "the optimizer applies it to the weights" in summary


@pytest.mark.parametrize(
    ("largest", "argument"),
    [(14.0, ".half().float().exp()"), (100.0, ".float().clamp(max=87).exp()")],
)
def test_an_exponential_is_clamped_only_beyond_the_range_of_fp32(largest, argument) -> None:
    def step(features: torch.Tensor) -> torch.Tensor:
        return (features * 0 + largest).half().exp()

    watch = Watch()
    with contextlib.suppress(Exception), watch:
        half_steps(Around(step))
    last = RULES["EXP_OVERFLOW"].read(watch.close()).change[-1]
    assert argument in last
    assert ("clamp" in last) is (largest > 88)


def test_the_rate_of_an_optimizer_with_an_eps_is_not_multiplied_by_the_gradient() -> None:
    evidence = watched(
        "UPDATE_NOT_FINITE", "broken_by_an_eps_of_zero_at_a_high_rate", errors=Exception
    )
    finding = diagnose(evidence).verdicts[0].finding
    assert "its eps is 0" in finding.summary
    assert "learning rate times gradient" not in finding.summary


def test_a_program_that_never_steps_is_not_called_sound() -> None:
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Watch() as watch:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).sum().backward()
    assert diagnose(watch.close()).headline == (
        "the training was not checked, because no optimizer made a step; nothing else was found"
    )


def test_training_in_another_thread_is_said_to_be_unchecked() -> None:
    with Watch() as watch:
        worker = threading.Thread(target=half_steps, args=(classifier(),))
        worker.start()
        worker.join()
    found = diagnose(watch.close())
    assert not found.verdicts
    assert "runs in another thread than the one that doctor watches" in found.headline


@pytest.mark.parametrize("name", ["broken", "broken_in_torch_s_own_clipping"])
def test_the_call_that_returned_an_fp16_norm_is_named(name: str) -> None:
    evidence = watched("GRADIENT_NORM_IN_FP16", name, errors=())
    fact = diagnose(evidence).verdicts[0].finding.facts[0]
    assert "norm" in fact.partition("()")[0]


def test_a_change_names_the_device_that_the_program_trains_on() -> None:
    finding = diagnose(watched("GRADIENTS_UNDERFLOW", "broken", errors=())).verdicts[0].finding
    assert any('torch.amp.GradScaler("cpu")  # once' in line for line in finding.change)


def test_updates_in_turns_are_all_counted() -> None:
    evidence = watched("SCALER_UPDATED_TWICE", "broken_gan", errors=())
    facts = diagnose(evidence).verdicts[0].finding.facts
    assert [fact.split(" in line")[0] for fact in facts] == ["5 updates", "5 updates"]


def test_infinities_that_the_program_writes_are_counted() -> None:
    name = "broken_by_the_maximum_of_nothing"
    (verdict,) = diagnose(watched("NOT_FINITE", name)).verdicts
    assert any("contain 16 infinite numbers that the program" in f for f in verdict.finding.facts)


@pytest.mark.parametrize(
    ("name", "confidence"),
    [
        ("broken_by_actions_that_are_drawn_again", "likely"),
        ("broken_by_an_input_that_is_kept", "possible"),
    ],
)
def test_a_value_that_nothing_reads_is_likely_if_it_shows_what_it_is_for(name, confidence) -> None:
    verdict = diagnose(watched("VALUE_NEVER_READ", name, errors=())).verdicts[0]
    assert verdict.finding.confidence == confidence
