from types import SimpleNamespace

import pytest
import torch

from halfstep.bench import marks as marking
from halfstep.bench.marks import PARTS, Marks, marked, total
from halfstep.engine import Engine

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(marking, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_a_part_lasts_from_the_mark_before_and_adds_up_within_a_step(clock):
    marks = Marks(CPU)
    for part, seconds in (("forward", 1), ("backward", 2), ("forward", 4), ("rest", 8)):
        clock.now += seconds
        marks.mark(part)
    marks.end_step()
    clock.now += 16
    marks.mark("data_wait")
    marks.end_step()
    clock.now += 32
    marks.mark("prepare")  # of a step that did not end
    first, second = marks.seconds()
    assert list(first) == list(PARTS)
    assert {part: taken for part, taken in first.items() if taken} == {
        "forward": 5,
        "backward": 2,
        "rest": 8,
    }
    assert total(first) == 15
    assert second["data_wait"] == total(second) == 16


def parts_of_a_step(recipe):
    torch.manual_seed(0)  # weights with which fp16 skips no step
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    marks = SimpleNamespace(mark=seen.append)
    with Engine(model, optimizer, recipe=recipe) as engine:
        with marked(engine, marks):
            for _ in range(2):
                with engine.autocast():
                    loss = engine.model(torch.ones(5, 3)).float().square().mean()
                engine.backward(loss)
                engine.step()
        step = seen[: len(seen) // 2]
        assert seen == 2 * step
        with engine.autocast():
            loss = engine.model(torch.ones(5, 3)).float().square().mean()
        engine.backward(loss)
        engine.step()
        assert seen == 2 * step, "still marked"
    return step


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "o2"])
def test_the_inside_of_an_engine_is_marked_only_while_asked(recipe):
    assert parts_of_a_step(recipe) == [
        *("forward", "backward", "unscale_clip", "optimizer", "rest")
    ]


def test_a_recipe_that_steps_in_pieces_has_one_part_for_all_of_them():
    step = parts_of_a_step("bf16-sr")
    assert step[:3] == ["forward", "backward", "unscale_clip"]
    assert set(step[3:-1]) == {"optimizer"}
    assert step[-1] == "rest"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_parts_are_the_gpus_time():
    device = torch.device("cuda")
    factor = torch.ones(4096, 4096, device=device)
    factor @ factor
    torch.cuda.synchronize()
    marks = Marks(device)
    for _ in range(20):
        factor @ factor
    marks.mark("forward")
    marks.mark("backward")
    marks.end_step()
    (step,) = marks.seconds()
    assert step["forward"] > step["backward"] >= 0
