import pytest

from halfstep.compare.plan.slots import as_seen_inside, at_once, deal_out, refuse_too_few


def test_each_slot_has_as_many_gpus_as_a_cell_has_processes():
    gpus = ("cuda:0", "cuda:1", "cuda:2", "cuda:7")
    assert deal_out(gpus, 1) == gpus
    assert deal_out(gpus, 2) == ("cuda:0,1", "cuda:2,7")
    assert deal_out(gpus, 4) == ("cuda:0,1,2,7",)
    assert deal_out(("cpu", "cpu"), 8) == ("cpu", "cpu")


@pytest.mark.parametrize(("count", "processes", "enough"), [(3, 2, 4), (1, 4, 4), (5, 3, 6)])
def test_gpus_that_are_left_over_are_refused(count, processes, enough):
    gpus = tuple(f"cuda:{number}" for number in range(count))
    with pytest.raises(ValueError, match=rf"but each run takes .* \(--processes\); name {enough}"):
        deal_out(gpus, processes)


@pytest.mark.parametrize(
    ("slot", "outer", "device", "visible"),
    [
        ("cpu", None, "cpu", None),
        ("cuda", None, "cuda", None),
        ("cuda:3", "4,5,6,7", "cuda:3", None),
        ("cuda:2,3", None, "cuda", "2,3"),
        ("cuda:2,3", "4,5,6,7", "cuda", "6,7"),
        ("cuda:0,1", "GPU-8a,GPU-5b,GPU-6c", "cuda", "GPU-8a,GPU-5b"),
    ],
)
def test_a_cell_sees_the_gpus_of_its_slot_and_no_others(monkeypatch, slot, outer, device, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if outer is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    expected = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert as_seen_inside(slot) == (device, expected)


def test_one_gpu_or_too_few_are_refused_for_several_processes():
    refuse_too_few("cuda:1", 1, 2)
    refuse_too_few("cuda", 2, 2)
    refuse_too_few("cpu", 64, 0)
    with pytest.raises(ValueError, match=r"device is 'cuda:1'.*write --device cuda, or --devices"):
        refuse_too_few("cuda:1", 2, 2)
    with pytest.raises(ValueError, match="torch sees 1 GPU here; write --processes 1, or"):
        refuse_too_few("cuda", 2, 1)


@pytest.mark.parametrize(
    ("cores", "threads", "cells", "slots"),
    [(2, 1, 25, 2), (16, 1, 25, 16), (16, 3, 25, 5), (64, 1, 7, 7), (2, 4, 25, 1), (1, 1, 25, 1)],
)
def test_cores_hold_as_many_cells_as_have_threads_of_their_own(
    monkeypatch, cores, threads, cells, slots
):
    monkeypatch.setattr("halfstep.compare.plan.slots.processors", lambda: cores)
    assert at_once(threads, cells) == slots
