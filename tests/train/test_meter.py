import math
from types import SimpleNamespace

import pytest
import torch

from halfstep.train.meter import Meter

TAKEN, SKIPPED = SimpleNamespace(stepped=True), SimpleNamespace(stepped=False)


def meter(device="cpu"):
    return Meter(torch.device(device))


def batch(size, device="cpu"):
    return torch.eye(3, device=device).repeat(size, 1)[:size], torch.arange(size, device=device) % 3


def test_interval_weights_batches_by_their_images():
    measured = meter()
    logits, labels = batch(6)
    measured.add(torch.tensor(1.0), logits, labels)
    measured.add(torch.tensor(4.0), logits[:2], 2 - labels[:2])
    measured.close(1, TAKEN)
    interval = measured.read()
    assert interval.loss == pytest.approx((6 * 1 + 2 * 4) / 8)
    # Of the last two, label 2 is called 0 and label 1 is called 1.
    assert interval.accuracy == pytest.approx(7 / 8)
    assert interval.nonfinite_step is None
    assert interval.images_per_second > 0


@pytest.mark.parametrize(
    ("results", "nonfinite", "poisoned"),
    [([SKIPPED, TAKEN], 5, 6), ([SKIPPED, SKIPPED], 5, None), ([TAKEN, TAKEN], 5, 5)],
)
def test_loss_that_is_not_finite_poisons_only_if_the_step_was_taken(results, nonfinite, poisoned):
    measured = meter()
    measured.add(torch.tensor(1.0), *batch(2))
    measured.close(4, TAKEN)
    for step, result in enumerate(results, start=5):
        measured.add(torch.tensor(1.0), *batch(2))
        measured.add(torch.tensor(math.inf), *batch(2))
        measured.close(step, result)
    interval = measured.read()
    assert (interval.nonfinite_step, interval.poisoned_step) == (nonfinite, poisoned)


def test_reading_starts_anew_but_keeps_a_window_that_is_still_open():
    measured = meter()
    measured.add(torch.tensor(math.nan), *batch(2))
    measured.close(1, SKIPPED)
    measured.add(torch.tensor(2.0), *batch(2))
    assert measured.read().nonfinite_step == 1
    measured.add(torch.tensor(math.inf), *batch(2))
    measured.close(2, TAKEN)
    assert measured.read().poisoned_step == 2


def test_windows_that_were_left_out_count_for_the_speed_only():
    seconds = iter([0.0, 10.0, 10.0])
    measured = Meter(torch.device("cpu"), lambda: next(seconds))
    measured.add(torch.tensor(math.nan), *batch(2))
    measured.close(1, None)
    measured.add(torch.tensor(3.0), *batch(3))
    measured.close(2, TAKEN)
    interval = measured.read()
    assert (interval.loss, interval.accuracy) == (3.0, 1.0)
    assert interval.images_per_second == 0.5
    assert (interval.nonfinite_step, interval.poisoned_step) == (1, None)


def test_mixed_labels_count_by_their_greater_part():
    measured = meter()
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    measured.add(torch.tensor(1.0), logits, torch.tensor([[0.6, 0.4, 0.0], [0.3, 0.0, 0.7]]))
    measured.close(1, TAKEN)
    assert measured.read().accuracy == 0.5


def test_state_carries_the_interval_and_the_open_window_over():
    seconds = [100.0]
    first, second = (Meter(torch.device("cpu"), lambda: seconds[0]) for _ in range(2))
    first.add(torch.tensor(math.inf), *batch(2))
    first.close(7, TAKEN)
    first.add(torch.tensor(1.5), *batch(3))
    seconds[0] += 5
    second.load_state_dict(first.state_dict())
    for measured in (first, second):
        measured.add(torch.tensor(0.5), *batch(1))
        measured.close(8, TAKEN)
    seconds[0] += 5
    assert first.read() == second.read()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_adding_does_not_wait_for_the_gpu():
    measured = meter("cuda")
    logits, labels = batch(6, "cuda")
    loss = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        measured.add(loss, logits, labels)
        measured.close(1, TAKEN)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert measured.read().accuracy == 1
