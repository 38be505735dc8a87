import math
from types import SimpleNamespace

import pytest
import torch

from halfstep.train.observers import meter
from halfstep.train.observers.meter import Meter

TAKEN = SimpleNamespace(stepped=True)


def batch(size, device="cpu"):
    return torch.eye(3, device=device).repeat(size, 1)[:size], torch.arange(size, device=device) % 3


def test_interval_weights_batches_by_their_images():
    measured = Meter()
    logits, labels = batch(6)
    measured.micro_batch(torch.tensor(1.0), logits, labels)
    measured.micro_batch(torch.tensor(4.0), logits[:2], 2 - labels[:2])
    measured.stepped(1, TAKEN)
    interval = measured.interval()
    assert interval["loss"] == pytest.approx((6 * 1 + 2 * 4) / 8)
    # Of the last two, label 2 is called 0 and label 1 is called 1.
    assert interval["accuracy"] == pytest.approx(7 / 8)
    assert interval["images_per_second"] > 0


def test_windows_that_were_left_out_count_for_the_speed_only():
    seconds = iter([0.0, 10.0, 10.0])
    measured = Meter(lambda: next(seconds))
    measured.micro_batch(torch.tensor(math.nan), *batch(2))
    measured.stepped(1, None)
    measured.micro_batch(torch.tensor(3.0), *batch(3))
    measured.stepped(2, TAKEN)
    interval = measured.interval()
    assert (interval["loss"], interval["accuracy"]) == (3.0, 1.0)
    assert interval["images_per_second"] == 0.5


def test_mixed_labels_count_by_their_greater_part():
    measured = Meter()
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    measured.micro_batch(
        torch.tensor(1.0), logits, torch.tensor([[0.6, 0.4, 0.0], [0.3, 0.0, 0.7]])
    )
    measured.stepped(1, TAKEN)
    assert measured.interval()["accuracy"] == 0.5


def test_state_carries_the_interval_and_the_open_window_over():
    seconds = [100.0]
    first, second = (Meter(lambda: seconds[0]) for _ in range(2))
    first.micro_batch(torch.tensor(2.5), *batch(2))
    first.stepped(7, TAKEN)
    first.micro_batch(torch.tensor(1.5), *batch(3))
    seconds[0] += 5
    second.load_state_dict(first.state_dict())
    for measured in (first, second):
        measured.micro_batch(torch.tensor(0.5), *batch(1))
        measured.stepped(8, TAKEN)
    seconds[0] += 5
    assert first.interval() == second.interval()


def test_of_fewer_processes_the_first_has_the_sums_of_all():
    states = []
    for loss, images in ((1.0, 2), (4.0, 1)):
        measured = Meter()
        measured.micro_batch(torch.tensor(loss), *batch(images))
        measured.stepped(1, TAKEN)
        measured.micro_batch(torch.tensor(loss), *batch(images))
        states.append(measured.state_dict())
    alone = Meter()
    assert alone.redistributed(states, first=False) is None
    alone.load_state_dict(alone.redistributed(states, first=True))
    alone.stepped(2, TAKEN)
    assert alone.interval()["loss"] == pytest.approx((1.0 * 4 + 4.0 * 2) / 6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_adding_does_not_wait_for_the_gpu():
    measured = Meter()
    logits, labels = batch(6, "cuda")
    loss = torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        measured.micro_batch(loss, logits, labels)
        measured.stepped(1, TAKEN)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert measured.interval()["accuracy"] == 1


@pytest.mark.parametrize(("most", "large"), [(1 << 17, 1 << 12), (20, 8)])
def test_losses_are_added_in_fp32_and_hits_counted_as_if_one_by_one(monkeypatch, most, large):
    monkeypatch.setattr(meter, "MOST", most)
    monkeypatch.setattr(meter, "LARGE", large)
    generator, measured = torch.Generator().manual_seed(0), Meter()
    loss_sum, hits, images = torch.zeros(()), 0, 0
    for step in range(1, 31):
        window, right = torch.zeros(()), 0
        for size in (3, 5)[: 1 + step % 2]:
            loss = torch.rand((), generator=generator)
            logits = torch.randn(size, 3, generator=generator)
            labels = torch.randint(3, (size,), generator=generator)
            measured.micro_batch(loss, logits, labels)
            window, right = window + loss * size, right + int((logits.argmax(1) == labels).sum())
            images += size
        loss_sum, hits = loss_sum + window, hits + right
        measured.stepped(step, TAKEN)
    interval = measured.interval()
    assert interval["loss"] == float(loss_sum) / images
    assert interval["accuracy"] == hits / images
