"""Injected faults: the birth is found by operator, phase, module and line, the harmless is not."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from doctor.loops import Around, batches, half_autocast
from halfstep.doctor import Watch

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence


def observe(fault, *, at: int = 2, backend: str | None = None, half: bool = False) -> Evidence:
    """Train; from step `at` on the features go through `fault`."""
    model = Around(lambda features: features)
    run = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    observer = Watch()
    with observer:
        for number, (images, labels) in enumerate(batches(4)):
            if number == at:
                model.inner.function = fault
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16, enabled=half):
                loss = functional.cross_entropy(run(images), labels)
            loss.backward()
            optimizer.step()
    assert not observer.troubles
    return observer.close()


def culprit(evidence: Evidence) -> Birth:
    (birth,) = [each for each in evidence.births if each.culprit]
    return birth


def matmul_overflow(features):
    return ((features.half() * 1000) @ (features.half().T * 1000)).float() @ features


def convolution_overflow(features):
    kernel = torch.full((1, 1, 3), 1e4, dtype=torch.float16)
    made = functional.conv1d((features * 1000).half()[:, None], kernel, padding=1)
    return made[:, 0].float()


def attention_overflow(features):
    query = (features * 1000).half()[None]
    scores = query @ query.transpose(1, 2)
    return (scores.softmax(-1) @ query)[0].float() * 1e-6


def exponential(features):
    return (features * 1000).exp()


def log_of_zero(features):
    return features.relu().log()


def zero_by_zero(features):
    return features / (features - features)


def root_at_zero(features):
    return (features - features.detach()).square().sum(1, keepdim=True).sqrt() + features


def masked_row(features):
    scores = features.masked_fill(torch.ones_like(features, dtype=torch.bool), float("-inf"))
    return scores.softmax(-1)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features):
        return features.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / torch.zeros_like(gradient)


def own_function(features):
    return Backwards.apply(features)


def in_a_checkpoint(features):
    return checkpoint(log_of_zero, features, use_reentrant=False)


def in_a_reentrant_checkpoint(features):
    return checkpoint(log_of_zero, features, use_reentrant=True)


FAULTS = [
    (matmul_overflow, "aten.mm", "forward"),
    (convolution_overflow, "aten.convolution", "forward"),
    (attention_overflow, "aten.bmm", "forward"),
    (exponential, "aten.exp", "forward"),
    (log_of_zero, "aten.log", "forward"),
    (zero_by_zero, "aten.div", "forward"),
    (root_at_zero, "aten.div", "backward"),
    (masked_row, "aten._softmax", "forward"),
    (own_function, "aten.div", "backward"),
]


@pytest.mark.parametrize(
    ("fault", "op", "phase"), FAULTS, ids=lambda each: getattr(each, "__name__", each)
)
def test_an_injected_fault_is_found_by_operator_phase_module_and_line(fault, op, phase) -> None:
    evidence = observe(fault)
    birth = culprit(evidence)
    assert (birth.op, birth.phase) == (op, phase)
    lines, start = inspect.getsourcelines(Backwards if fault is own_function else fault)
    assert start <= birth.site.line < start + len(lines)
    assert birth.site.file == __file__
    assert birth.module == "inner"
    plain = next(each for each in evidence.replays if each.name == "plain")
    assert plain.same
    assert plain.iteration == 2


@pytest.mark.parametrize("fault", [in_a_checkpoint, in_a_reentrant_checkpoint])
def test_a_fault_in_a_checkpointed_block_is_found(fault) -> None:
    evidence = observe(fault)
    assert [each.loss is None for each in evidence.numbers.steps] == [False] * 4
    birth = culprit(evidence)
    assert (birth.op, birth.phase, birth.module) == ("aten.log", "forward", "inner")
    assert "log()" in birth.site.text


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_fault_in_a_compiled_model_is_found_in_its_eager_replay(backend) -> None:
    evidence = observe(log_of_zero, backend=backend)
    birth = culprit(evidence)
    assert (birth.op, birth.module) == ("aten.log", "inner")
    assert {each.name for each in evidence.replays} == {"plain", "fp32", "eager"}


@pytest.mark.slow
def test_a_step_that_inductor_compiled_is_run_again() -> None:
    evidence = observe(lambda features: features * 2, backend="inductor", half=True)
    assert [each.note for each in evidence.replays] == [], "the last step, run for its headroom"


def test_an_infinity_that_a_division_makes_harmless_is_not_blamed() -> None:
    def harmless(features):
        return 1 / (1 + (features.detach() * 1000).exp()) + features

    def both(features):
        return harmless(features) + log_of_zero(features)

    (birth,) = observe(harmless).births
    assert (birth.op, birth.culprit, birth.swallowed) == ("aten.exp", False, ("aten.reciprocal",))
    birth = culprit(observe(both))
    assert birth.op == "aten.log"


def test_a_poisoned_weight_is_given_and_not_born() -> None:
    model = Around(lambda features: features)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    observer = Watch()
    with observer:
        for number, (images, labels) in enumerate(batches(3)):
            if number == 1:
                model.lift.weight.data[2, 1] = float("nan")
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    evidence = observer.close()
    birth = culprit(evidence)
    assert (birth.phase, birth.output.name) == ("given", "parameter lift.weight")
    bad = evidence.inputs[0]
    assert (bad.what, bad.name, bad.index, bad.iteration) == ("parameter", "lift.weight", (2, 1), 1)


def test_a_random_fault_is_repeated_by_its_replay() -> None:
    def rarely(features):
        return features / (torch.rand(()) > 0.9)

    evidence = observe(rarely, at=0)
    birth = culprit(evidence)
    assert birth.op == "aten.div"
    assert all(each.same for each in evidence.replays if each.name == "plain")


def test_what_overflows_in_fp16_is_finite_in_its_fp32_replay() -> None:
    def large(features):
        return (features * 300) @ (features.T * 300) @ features * 1e-6

    evidence = observe(large, half=True)
    found = {each.name: each.finite for each in evidence.replays}
    assert found == {"plain": False, "fp32": True}
    birth = culprit(evidence)
    assert birth.output.format == "fp16"
    assert birth.exact > 65504


def test_a_batch_that_is_not_finite_is_given_and_its_place_is_named() -> None:
    model = Around(lambda features: features)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    observer = Watch()
    with observer:
        for number, (images, labels) in enumerate(batches(4)):
            if number == 2:
                images[3, 1] = float("inf")
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    evidence = observer.close()
    birth = culprit(evidence)
    assert (birth.phase, birth.output.name) == ("given", "batch")
    bad = evidence.inputs[0]
    assert (bad.what, bad.index, bad.iteration) == ("batch", (3, 1), 2)


def test_a_loss_scale_that_is_too_high_is_born_in_the_backward_of_a_cast_at_the_loop_s_line() -> (
    None
):
    model = Around(lambda features: features)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    observer = Watch()
    with observer:
        for images, labels in batches(6):
            optimizer.zero_grad()
            with half_autocast():
                outputs = model(images)
            loss = functional.cross_entropy(outputs.float(), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    evidence = observer.close()
    birth = culprit(evidence)
    assert (birth.op, birth.phase, birth.forward_op) == (
        "aten._to_copy",
        "backward",
        "aten._to_copy",
    )
    assert "outputs.float()" in birth.site.text
    assert birth.exact > 65504
    assert {each.name: each.finite for each in evidence.replays} == {
        "plain": False,
        "lower scale": True,
        "fp32": True,
    }


def what_the_others_have_too(state, bucket):
    """The mean of gradients over processes that all have the same."""
    reduced = torch.futures.Future()
    reduced.set_result(bucket.buffer())
    return reduced


@pytest.fixture
def one_of_two_ranks():
    """The process group of one of two processes, the other of which never answers."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_of_two_ranks")
def test_a_fault_on_one_of_two_ranks_is_found_by_replays_that_wait_for_nobody() -> None:
    model = Around(lambda features: features)
    parallel = nn.parallel.DistributedDataParallel(model)
    parallel.register_comm_hook(None, what_the_others_have_too)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    observer = Watch()
    with observer:
        for number, (images, labels) in enumerate(batches(3)):
            if number == 1:
                model.inner.function = log_of_zero
            optimizer.zero_grad()
            functional.cross_entropy(parallel(images), labels).backward()
            optimizer.step()
    evidence = observer.close()
    assert not observer.troubles
    birth = culprit(evidence)
    assert (birth.op, birth.phase, birth.module) == ("aten.log", "forward", "inner")
    assert evidence.environment.processes == 2
