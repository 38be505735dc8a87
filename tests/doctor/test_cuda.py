"""Programs on CUDA: numbers are read late, graphs are captured, cuDNN packs weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.doctor import Evidence, Watch, diagnose

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GRAPHS = "steps that a CUDA graph replays"


class Graph:
    """Stands for `torch.cuda.CUDAGraph` without a GPU."""

    def capture_begin(self) -> None:
        pass

    def capture_end(self) -> None:
        pass


def test_what_a_graph_captures_is_neither_read_nor_recorded(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        (weight.sum() * factor).backward()
        optimizer.step()

    graph = torch.cuda.CUDAGraph()
    with Watch() as watch:
        step(1.0)
        graph.capture_begin()
        step(float("nan"))
        graph.capture_end()
        weight.data.fill_(1.0)
        step(1.0)
    evidence = watch.close()
    assert [each.loss for each in evidence.numbers.steps] == [3.0, 3.0]
    assert not watch.troubles
    diagnosis = diagnose(evidence)
    assert not diagnosis.verdicts
    assert any(GRAPHS in note for note in diagnosis.notes)
    assert not any(GRAPHS in note for note in diagnose(Evidence()).notes)


@needs_gpu
def test_a_captured_step_trains_as_without_doctor() -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        images = torch.randn(8, 6, device="cuda")
        labels = torch.arange(8, device="cuda") % 3
        watch = Watch(waits=True)
        if watched:
            watch.start()

        def step(model=model, optimizer=optimizer, images=images, labels=labels) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        for _ in range(5):
            graph.replay()
        ends.append(loss.item())
        if watched:
            evidence = watch.close()
            assert not watch.troubles
            assert any(GRAPHS in note for note in diagnose(evidence).notes)
    assert ends[0] == ends[1]


class Packed(nn.Linear):
    """Fails as a cuDNN RNN does under autocast, if its results are fp32."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        results = super().forward(images)
        if results.dtype == torch.float32 and torch.backends.cudnn.enabled:
            raise RuntimeError("cur_offset == offset INTERNAL ASSERT FAILED")
        return results


def test_an_fp32_run_that_cudnn_refuses_is_made_without_it() -> None:
    model = Packed(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch() as watch:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(2, 6)).float().square().mean()
            loss.backward()
            optimizer.step()
    evidence = watch.close()
    assert not evidence.precision.note
    assert evidence.precision.agreements
    assert torch.backends.cudnn.enabled


@needs_gpu
@pytest.mark.parametrize("half", [False, True], ids=["autocast", "half parameters"])
def test_headroom_of_a_cudnn_lstm_is_known(half) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(16, 32, 2, batch_first=True).cuda()
    model = model.half() if half else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(waits=True) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            images = torch.randn(4, 5, 16, device="cuda", dtype=torch.half if half else torch.float)
            with torch.autocast("cuda", torch.float16, enabled=not half):
                loss = model(images)[0].float().square().mean()
            loss.backward()
            optimizer.step()
    evidence = watch.close()
    assert not watch.troubles
    assert not evidence.precision.note
    assert evidence.precision.agreements


@needs_gpu
@pytest.mark.parametrize("fused", [False, True])
def test_the_operator_of_a_step_that_spoils_the_parameters_is_named(fused) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 16).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    with Watch(waits=True) as watch:
        for step in range(6):
            optimizer.zero_grad()
            outputs = model(torch.randn(8, 6, device="cuda")).relu() + (step < 3)
            outputs.log().mean().backward()
            optimizer.step()
    assert not watch.troubles
    assert [each.code for each in diagnose(watch.close()).verdicts] == ["LOG_OF_ZERO"]
