"""Loops on halfstep's engine: what it does by itself is seen, and held against nobody."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep import EMA, Engine, step_observer
from halfstep.doctor import Evidence, Watch, diagnose

RECIPES = ("fp32", "bf16", "fp16", "o2", "fp16-acc16")
SCALED = ("fp16", "o2")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def batches(count: int = 7) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, 12, generator=generator),
            torch.randint(0, 4, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def one_step(engine: Engine, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with engine.autocast():
        loss = functional.cross_entropy(engine.model(images), labels)
    engine.backward(loss)
    engine.step()
    return loss.detach()


def plainly(recipe: str, *, spoiled: int = -1, rate: float = 0.01, **settings) -> list[float]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    with Engine(model, optimizer, recipe=recipe, **settings) as engine:
        for number, (images, labels) in enumerate(engine.batches(batches())):
            if number == spoiled:
                images[2, 3] = float("nan")
            losses.append(float(one_step(engine, images, labels)))
    return losses


def accumulating(recipe: str) -> None:
    plainly(recipe, accumulate=3, clip_norm=1.0)


def averaging(recipe: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    engine = Engine(model, optimizer, recipe=recipe, average=EMA(0.9), scheduler=schedule)
    with engine:
        for images, labels in batches():
            one_step(engine, images, labels)
            with engine.evaluating():
                functional.cross_entropy(engine.model(images), labels)


def two_optimizers(recipe: str) -> None:
    model = network()
    optimizers = [
        torch.optim.AdamW(model[:2].parameters(), lr=0.01),
        torch.optim.SGD(model[2:].parameters(), lr=0.01),
    ]
    with Engine(model, optimizers, recipe=recipe, clip_norm=1.0) as engine:
        for images, labels in batches():
            one_step(engine, images, labels)


def adversaries(recipe: str) -> None:
    torch.manual_seed(0)
    models = [nn.Linear(4, 12), nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))]
    makes, judges = (torch.optim.Adam(each.parameters(), lr=1e-3) for each in models)
    right, wrong = torch.ones(8, 1), torch.zeros(8, 1)
    judgement = functional.binary_cross_entropy_with_logits
    with Engine(models, [makes, judges], recipe=recipe) as engine:
        maker, judge = engine.models
        for images, _ in batches():
            with engine.autocast():
                made = maker(torch.randn(8, 4))
                loss = judgement(judge(images), right) + judgement(judge(made.detach()), wrong)
            engine.backward(loss, optimizers=[judges])
            engine.step(optimizers=[judges])
            with engine.autocast():
                loss = judgement(judge(made), right)
            engine.backward(loss, optimizers=[makes])
            engine.step(optimizers=[makes])


def penalized(recipe: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Engine(model, optimizer, recipe=recipe) as engine:
        for images, labels in batches():
            images.requires_grad_()
            with engine.autocast():
                loss = functional.cross_entropy(engine.model(images), labels)
            (gradient,) = engine.grad(loss, images, create_graph=True)
            engine.backward(loss + gradient.square().sum())
            engine.step()


def own_scales(recipe: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Engine(model, optimizer, recipe=recipe) as engine:
        for images, labels in batches():
            with engine.autocast():
                outputs = engine.model(images)
                loss, size = functional.cross_entropy(outputs, labels), outputs.square().mean()
            engine.backward(loss, retain_graph=True)
            engine.backward(size, loss_id="size")
            engine.step()


def watched(program, recipe: str) -> tuple[Evidence, list[str]]:
    watch = Watch()
    with contextlib.suppress(RuntimeError), watch:
        program(recipe)
    assert not watch.troubles, watch.troubles[0]
    evidence = watch.close()
    assert not [each.note for each in evidence.replays if each.note]
    return evidence, [each.code for each in diagnose(evidence).verdicts]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    "program",
    [
        plainly,
        accumulating,
        averaging,
        two_optimizers,
        adversaries,
        penalized,
        own_scales,
    ],
    ids=lambda program: program.__name__,
)
def test_a_healthy_loop_gets_no_verdict(program, recipe: str) -> None:
    _, codes = watched(program, recipe)
    assert codes == []


def closing_a_loss() -> list[float]:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    losses: list[float] = []
    with Engine(model, optimizer) as engine:
        for images, labels in batches(3):

            def loss_of(images=images, labels=labels) -> float:
                engine.zero_grad()
                loss = functional.cross_entropy(engine.model(images), labels)
                engine.backward(loss)
                losses.append(float(loss.detach()))
                return losses[-1]

            engine.step(closure=loss_of)
    return losses


def test_a_loss_that_is_evaluated_inside_the_step_is_seen() -> None:
    evidence, codes = watched(lambda _: closing_a_loss(), "fp32")
    assert codes == []
    assert evidence.loop.count("backward") == len(closing_a_loss())
    assert evidence.precision.loss is not None


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_spoiled_batch_is_named_and_where_in_it(recipe: str) -> None:
    evidence, codes = watched(lambda name: plainly(name, spoiled=4), recipe)
    assert codes == ["CORRUPT_BATCH"]
    assert next((each.index, each.iteration) for each in evidence.inputs) == ((2, 3), 4)


@pytest.mark.filterwarnings("ignore::halfstep.engine.EngineWarning")
@pytest.mark.parametrize("policy", ["skip", "apply"])
@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_a_learning_rate_that_is_too_high_is_named(recipe: str, policy: str) -> None:
    def diverging(name: str) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
        with Engine(model, optimizer, recipe=name, nonfinite=policy) as engine:
            for images, labels in batches(20):
                one_step(engine, images, labels)

    assert watched(diverging, recipe)[1] == ["LEARNING_RATE_TOO_HIGH"]


@pytest.mark.parametrize("recipe", SCALED)
def test_scales_and_steps_of_the_engine_are_events(recipe: str) -> None:
    loop = watched(lambda name: plainly(name, accumulate=2), recipe)[0].loop
    assert loop.count("scale", scaler=0, already=False) == 7
    assert loop.count("backward", scaled=True, mixed=False, reaches="0") == 7
    assert loop.count("step", by_scaler=True, gradients="unscaled") == 4
    assert loop.count("scaler step", optimizer=0, again=False) == 4
    assert loop.count("write") == loop.count("update") == 0
    lines = [event.site for _, event in loop.of("step")]
    assert {line.text for line in lines if line} == {"engine.step()"}


@pytest.mark.parametrize("recipe", SCALED)
def test_a_step_that_is_skipped_is_counted_and_its_scale_known(recipe: str) -> None:
    evidence, _ = watched(lambda name: plainly(name, spoiled=4), recipe)
    skipped = [each for each in evidence.numbers.steps if each.skipped]
    assert [(each.iteration, each.scale) for each in skipped] == [(4, 2.0**16)]
    assert evidence.numbers.steps[5].scale == 2.0**15
    assert evidence.static.optimizers[0].skipped == 1


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_a_step_that_is_skipped_without_a_scale_is_counted(recipe: str, general: bool) -> None:
    def spoiled(name: str) -> None:
        plainly(name, spoiled=4, accumulate=1 + general, clip_norm=1.0 if general else None)

    evidence, verdicts = watched(spoiled, recipe)
    skipped = [each for each in evidence.numbers.steps if each.skipped]
    assert [each.iteration for each in skipped] == [4 // (1 + general)]
    assert evidence.static.optimizers[0].skipped == 1
    assert evidence.loop.count("drop") == 1
    assert evidence.loop.count("step") == len(evidence.numbers.steps) - 1
    assert verdicts == ["CORRUPT_BATCH"]


@pytest.mark.filterwarnings("ignore::halfstep.engine.EngineWarning")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("policy", ["skip", "apply"])
def test_gradients_that_overflow_without_a_scale_are_named_under_every_policy(
    policy: str, fused: bool
) -> None:
    def overflowing(recipe: str) -> None:
        model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)
        with Engine(model, optimizer, recipe=recipe, nonfinite=policy) as engine:
            for images, labels in batches(3):
                loss = functional.cross_entropy(engine.model(images).float(), labels) * 1e7
                engine.backward(loss)
                engine.step()

    assert watched(overflowing, "half")[1] == ["GRADIENTS_OVERFLOW"]


def test_gradients_that_the_loop_changes_while_they_are_scaled_are_found() -> None:
    def clipping(recipe: str) -> None:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Engine(model, optimizer, recipe=recipe) as engine:
            for images, labels in batches():
                with engine.autocast():
                    loss = functional.cross_entropy(engine.model(images), labels)
                engine.backward(loss)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                with pytest.warns(match="gradients changed"):
                    engine.step()

    assert watched(clipping, "fp16")[1] == ["GRADIENTS_CHANGED_WHILE_SCALED"]


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated, and gradients have changed
def test_a_change_of_scaled_gradients_that_python_does_not_call_is_found() -> None:
    clamp = torch.jit.CompilationUnit("def clamp(grad):\n    grad.clamp_(-1.0, 1.0)\n").clamp

    def clamping(recipe: str) -> None:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Engine(model, optimizer, recipe=recipe) as engine:
            for images, labels in batches():
                with engine.autocast():
                    loss = functional.cross_entropy(engine.model(images), labels)
                engine.backward(loss)
                for param in model.parameters():
                    clamp(param.grad)
                engine.step()

    assert watched(clamping, "fp16")[1] == ["GRADIENTS_CHANGED_WHILE_SCALED"]


@pytest.mark.filterwarnings("ignore::halfstep.engine.EngineWarning")
@pytest.mark.parametrize("policy", ["skip", "apply"])
def test_a_loss_that_overflows_in_the_model_is_traced_to_its_line_under_every_recipe(
    policy: str,
) -> None:
    class Large(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return torch.exp(features * 0 + 100.0)

    def overflowing(recipe: str) -> None:
        model = nn.Sequential(nn.Linear(12, 4), Large())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Engine(model, optimizer, recipe=recipe, nonfinite=policy) as engine:
            for images, labels in batches(3):
                one_step(engine, images, labels)

    for recipe in RECIPES:
        evidence, codes = watched(overflowing, recipe)
        assert codes == ["EXP_OVERFLOW"], recipe
        culprit = next(birth for birth in evidence.births if birth.culprit)
        assert culprit.user_site is not None
        assert culprit.user_site.text == "return torch.exp(features * 0 + 100.0)"


@pytest.mark.parametrize("restored", [True, False])
def test_a_resume_without_the_loss_scale_is_told_from_one_with_it(restored: bool) -> None:
    first = network()
    with Engine(first, torch.optim.AdamW(first.parameters(), lr=0.01), recipe="fp16") as engine:
        for images, labels in batches():
            one_step(engine, images, labels)
        state, moments = engine.state_dict(), engine.optimizer.state_dict()

    def resume(recipe: str) -> None:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Engine(model, optimizer, recipe=recipe) as engine:
            if restored:
                engine.load_state_dict(state)
            else:
                optimizer.load_state_dict(moments)
            for images, labels in batches():
                one_step(engine, images, labels)

    codes = watched(resume, "fp16")[1]
    assert codes == ([] if restored else ["SCALER_STATE_NOT_RESTORED"])


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_without_the_loss_scale_is_told_from_one_with_it(
    whole: bool, tmp_path
) -> None:
    def saving(recipe: str) -> None:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Engine(model, optimizer, recipe=recipe) as engine:
            for images, labels in batches():
                one_step(engine, images, labels)
            state = engine.state_dict() if whole else optimizer.state_dict()
            torch.save({"model": model.state_dict(), "state": state}, tmp_path / "last.pt")

    assert watched(saving, "fp16")[1] == ([] if whole else ["SCALER_NOT_SAVED"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_are_the_same_bits_with_and_without_a_watch(recipe: str) -> None:
    alone = plainly(recipe, accumulate=2, clip_norm=1.0, spoiled=3)
    seen: list[float] = []
    watch = Watch()
    with watch:
        seen = plainly(recipe, accumulate=2, clip_norm=1.0, spoiled=3)
    assert torch.equal(torch.tensor(alone).view(torch.int32), torch.tensor(seen).view(torch.int32))


def test_nobody_is_told_once_the_watch_is_over() -> None:
    before = step_observer.active
    with Watch():
        assert step_observer.active is not before
    assert step_observer.active is before


def test_a_learning_rate_that_fp16_cannot_hold_is_no_mask() -> None:
    def too_fast(recipe: str) -> None:
        model = nn.Linear(12, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
        with Engine(model, optimizer, recipe=recipe) as engine:
            for images, labels in batches(3):
                one_step(engine, images, labels)

    evidence, codes = watched(too_fast, "half")
    assert "without overflow" in evidence.ending.message
    assert evidence.ending.in_optimizer
    assert codes == []


def test_copies_that_the_engine_makes_of_statistics_are_not_the_loops() -> None:
    calls = watched(plainly, "fp16")[0].calls
    names = {call.name for call in calls}
    assert "cross_entropy" in names
    assert "clone" not in names
