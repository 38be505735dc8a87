"""Whole training loops of many styles, all of them right: doctor says nothing."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

from doctor.loops import batches, classifier, half_autocast, loss_of
from halfstep.doctor import Watch, diagnose


def scaled_step(optimizer, scaler, loss) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def adversaries_in_a_class_with_dicts_and_epoch_schedules() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.models = {
                "maker": nn.Linear(4, 6),
                "judge": nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1)),
            }
            self.optimizers = {
                name: torch.optim.Adam(each.parameters(), lr=1e-3)
                for name, each in self.models.items()
            }
            self.schedules = [
                torch.optim.lr_scheduler.StepLR(each, 1) for each in self.optimizers.values()
            ]
            self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

        def verdict(self, images, wanted):
            outputs = self.models["judge"](images)
            targets = torch.full_like(outputs, wanted)
            return functional.binary_cross_entropy_with_logits(outputs, targets)

        def judge(self, images) -> None:
            with half_autocast():
                with torch.no_grad():
                    made = self.models["maker"](torch.randn(8, 4))
                loss = self.verdict(images, 1.0) + self.verdict(made, 0.0)
            scaled_step(self.optimizers["judge"], self.scaler, loss)

        def make(self) -> None:
            with half_autocast():
                loss = self.verdict(self.models["maker"](torch.randn(8, 4)), 1.0)
            scaled_step(self.optimizers["maker"], self.scaler, loss)

        def run(self) -> None:
            for _ in range(2):
                for images, _ in batches(4):
                    self.judge(images)
                    self.make()
                    self.scaler.update()
                for each in self.schedules:
                    each.step()

    torch.manual_seed(0)
    Trainer().run()


def several_steps_of_the_judge_for_one_of_the_maker() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 6), nn.Linear(6, 1)
    makes = torch.optim.SGD(maker.parameters(), lr=1e-3)
    judges = torch.optim.SGD(judge.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, _ in batches(4):
        for _ in range(3):
            with half_autocast():
                with torch.no_grad():
                    made = maker(torch.randn(8, 4))
                loss = judge(made).mean() - judge(images).mean()
            scaled_step(judges, scaler, loss)
            scaler.update()
        with half_autocast():
            loss = -judge(maker(torch.randn(8, 4))).mean()
        scaled_step(makes, scaler, loss)
        scaler.update()


def a_bad_sample_is_caught_and_left_out() -> None:
    def check(number: int) -> None:
        if number == 2:
            raise ValueError("a file that cannot be read")

    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for number, (images, labels) in enumerate(batches(6)):
        try:
            check(number)
            optimizer.zero_grad()
            scaler.scale(loss_of(model, images, labels)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        except ValueError:
            continue


def an_average_in_fp32_is_evaluated() -> None:
    model = classifier()
    average = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for images, labels in batches(6):
        scaled_step(optimizer, scaler, loss_of(model, images, labels))
        scaler.update()
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(its, 0.001)
            for mine, its in zip(average.buffers(), model.buffers(), strict=True):
                mine.copy_(its)
            loss_of(average, images, labels)


def a_checkpoint_is_resumed_with_all_of_its_state() -> None:
    def parts():
        model = classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        return model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0), schedule

    def epoch(model, optimizer, scaler, schedule) -> None:
        for images, labels in batches(3):
            scaled_step(optimizer, scaler, loss_of(model, images, labels))
            scaler.update()
        schedule.step()

    before = parts()
    epoch(*before)
    file = io.BytesIO()
    torch.save([each.state_dict() for each in before], file)
    file.seek(0)
    after = parts()
    for part, state in zip(after, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    epoch(*after)


def a_layer_is_unfrozen_later() -> None:
    model = classifier()
    model[0].requires_grad_(requires_grad=False)
    groups = [
        {"params": model[0].parameters(), "lr": 1e-4},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(8)):
        if number == 5:
            model[0].requires_grad_()
        scaled_step(optimizer, scaler, loss_of(model, images, labels))
        scaler.update()


def the_search_for_a_scale_with_a_warm_up_that_waits_for_it() -> None:
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: min(1, (count + 1) / 10))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    for images, labels in batches(20):
        loss = loss_of(model, images, labels)
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
            warm_up.step()


def master_weights_kept_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    masters = [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    for images, labels in batches(6):
        model.zero_grad()
        functional.cross_entropy(model(images.bfloat16()).float(), labels).backward()
        for mine, its in zip(masters, model.parameters(), strict=True):
            mine.grad = its.grad.float()
        nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mine, its in zip(masters, model.parameters(), strict=True):
                its.copy_(mine)


def two_steps_of_sharpness_aware_minimisation() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(4):
        functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
            away = [each.grad * 0.05 / norm for each in model.parameters()]
            for each, distance in zip(model.parameters(), away, strict=True):
                each.add_(distance)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for each, distance in zip(model.parameters(), away, strict=True):
                each.sub_(distance)
        optimizer.step()
        optimizer.zero_grad()


def a_search_for_the_learning_rate_and_back() -> None:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, (images, labels) in enumerate(batches(8)):
        optimizer.param_groups[0]["lr"] = 1e-3 * 1.3**number
        scaled_step(optimizer, scaler, loss_of(model, images, labels))
        scaler.update()
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    for images, labels in batches(3):
        scaled_step(optimizer, scaler, loss_of(model, images, labels))
        scaler.update()


def functions_in_place_of_modules() -> None:
    weight = torch.randn(6, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches(4):
        with half_autocast():
            loss = functional.cross_entropy(images @ weight, labels)
        scaled_step(optimizer, scaler, loss)
        scaler.update()


def inference_in_half() -> None:
    model = classifier().half().eval()
    with torch.no_grad():
        for images, labels in batches(3):
            outputs = model(images.half())
            functional.cross_entropy(outputs, labels)
            outputs.softmax(-1).argmax(-1)


def a_convolution_in_bf16() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[:, None].bfloat16()).float(), labels).backward()
        optimizer.step()


LOOPS = [
    a_convolution_in_bf16,
    adversaries_in_a_class_with_dicts_and_epoch_schedules,
    several_steps_of_the_judge_for_one_of_the_maker,
    a_bad_sample_is_caught_and_left_out,
    an_average_in_fp32_is_evaluated,
    a_checkpoint_is_resumed_with_all_of_its_state,
    a_layer_is_unfrozen_later,
    the_search_for_a_scale_with_a_warm_up_that_waits_for_it,
    master_weights_kept_by_hand,
    two_steps_of_sharpness_aware_minimisation,
    a_search_for_the_learning_rate_and_back,
    functions_in_place_of_modules,
    inference_in_half,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_that_is_right_gets_no_verdict(loop) -> None:
    watch = Watch()
    with watch:
        loop()
    assert not watch.troubles, watch.troubles
    evidence = watch.close()
    assert diagnose(evidence).verdicts == ()
    assert not [each.note for each in evidence.replays if each.note]
    assert evidence.precision.note in {"", "the last step had no backward"}
