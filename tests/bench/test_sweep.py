import json

import pytest

from halfstep.bench.sweep import ONE_ROUND, Quantity, Sweep

RATES = Quantity("images /s", "more", "{:.0f}".format)
SECONDS = Quantity("seconds to the first step", "less", "{:.1f}".format)
WORKERS = Sweep("data.workers", ("0", "2", "4"), RATES)
START = Sweep("start", ("spawn", "torchrun"), SECONDS)


ZERO, TWO, FOUR = (f"data.workers={count}" for count in (0, 2, 4))


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            [[100, 101], [180, 182], [181, 180]],
            f"{TWO}: 1.80x of {ZERO}; larger values do not help",
        ),
        ([[100, 101], [60, 62], [61, 60]], f"{ZERO}: larger values are slower"),
        ([[100, 101], [100, 99], [102, 99]], f"{ZERO}: larger values do not help"),
        (
            [[100, 100], [180, 180], [300, 300]],
            f"{FOUR}: 3.00x of {ZERO}; no larger value was tried",
        ),
    ],
)
def test_what_to_do_follows_from_the_figures_and_their_spread(subject, figures, said):
    assert WORKERS.outcome(subject, figures).recommendation == said


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ([[20, 22], [10, 11]], "torchrun: 2.00x of spawn"),
        ([[10, 11], [10, 11]], "spawn: no other is faster"),
    ],
)
def test_words_are_no_numbers_of_which_there_could_be_more(subject, figures, said):
    outcome = START.outcome(subject, figures)
    assert outcome.recommendation == said
    assert outcome.charts == []
    assert [bar["label"] for bar in outcome.bars] == ["spawn", "torchrun"]
    assert max(bar["share"] for bar in outcome.bars) == 1


def test_the_results_hold_every_round_and_the_environment(subject):
    outcome = WORKERS.outcome(subject, [[100, 104], [180, 182], [181, 180]], ["a note"])
    results = json.loads(json.dumps(outcome.as_json()))
    assert results["rows"]["2"]["rounds"] == [180, 182]
    assert results["rows"]["2"]["figure"]["median"] == 181
    assert results["rows"]["4"]["speed"]["median"] == pytest.approx((1.81 + 180 / 104) / 2)
    assert results["environment"]["device_name"] == "Imaginary GPU"
    assert results["options"] == ["batch_size=8"]
    assert results["notes"][-1] == "a note"
    assert outcome.titles == ["data.workers", "images /s", "speed x"]
    assert [row[1].spread for row in outcome.rows] == ["101 to 103", "180 to 182", "180 to 181"]
    assert outcome.rows[0][2].spread == ""


def test_the_chart_has_a_line_for_each_round_and_one_for_the_medians(subject):
    outcome = WORKERS.outcome(subject, [[100, 104], [180, 182], [181, 180]])
    (chart,) = outcome.charts
    assert [line["y"] for line in chart["series"]] == [
        [102, 181, 180.5],
        [100, 180, 181],
        [104, 182, 180],
    ]
    assert all(line["x"] == [0, 2, 4] for line in chart["series"])
    assert outcome.arms == ("median", "round 1", "round 2")


def test_one_round_says_that_it_gives_no_spread(subject):
    outcome = WORKERS.outcome(subject, [[100], [180], [181]])
    assert ONE_ROUND in outcome.notes
    assert all(cell.spread == "" for row in outcome.rows for cell in row)
