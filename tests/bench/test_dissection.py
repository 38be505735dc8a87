import json

import pytest

from halfstep.bench.dissection import Dissection
from halfstep.bench.marks import PARTS


def test_every_part_has_a_row_and_the_shares_make_a_whole(subject, make_step):
    rounds = [[make_step(forward=0.003), make_step(forward=0.005)]]
    outcome = Dissection({"fp32": rounds}, {"fp32": []}, warmup=7).outcome(subject)
    assert [row[1].text for row in outcome.rows][-1] == "whole step"
    assert len(outcome.rows) == len(PARTS) + 1
    assert sum(row[4].value for row in outcome.rows[:-1]) == pytest.approx(1)
    assert len(outcome.headers) == 5, "nothing to compare the speed of one recipe with"
    rows = outcome.figures["rows"]["fp32"]
    assert rows["forward"]["median_s"] == pytest.approx(0.004)
    assert rows["forward"]["p95_s"] == pytest.approx(0.0049)
    assert rows["step"]["share"] == 1
    assert outcome.charts[0]["series"][0]["x"] == [8, 9]
    assert sum(part["share"] for part in outcome.bars[0]["parts"]) == pytest.approx(1)


def test_recipes_are_compared_part_by_part_and_as_a_whole(subject, make_step):
    slow, fast = make_step(forward=0.014), make_step(forward=0.004)
    never = make_step(forward=0.004, optimizer=0.0)
    found = {"fp32": [[slow], [slow]], "fp16": [[fast], [fast]], "o2": [[never], [never]]}
    outcome = Dissection(found, {name: ["no units"] for name in found}, warmup=0).outcome(subject)
    rows = outcome.as_json()["rows"]
    assert rows["fp16"]["forward"]["speed"]["median"] == pytest.approx(3.5)
    assert rows["fp16"]["step"]["speed"]["median"] == pytest.approx(2)
    assert rows["o2"]["optimizer"]["speed"] is None
    assert outcome.recommendation.startswith("recipe=o2: 2.22x of fp32; ")
    assert {row[0].text for row in outcome.rows} == {"fp32 †", "fp16 †", "o2 †"}
    json.dumps(outcome.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"data_wait": 0.006}, "data wait takes 50 % of a step: halfstep bench loader"),
        ({"backward": 0.194}, "backward takes 97 % of a step and data wait 0 %"),
    ],
)
def test_what_to_change_first_is_what_takes_the_time(subject, make_step, seconds, said):
    found = {"fp32": [[make_step(**seconds)] * 2] * 2, "fp16": [[make_step(**seconds)] * 2] * 2}
    outcome = Dissection(found, {name: [] for name in found}, warmup=0).outcome(subject)
    assert outcome.recommendation.startswith("recipe=fp32: no other recipe is faster; ")
    assert said in outcome.recommendation
