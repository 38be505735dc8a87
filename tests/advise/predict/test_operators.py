"""What operators ask for, against closed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.advise.predict.step import traced
from halfstep.advise.predict.trace import Call, recorded
from halfstep.advise.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable


def calls_of(run: Callable[[], object]) -> dict[tuple[str, str], Call]:
    with recorded() as recorder:
        recorder.begin()
        run()
        return {(call.op.name, call.op.role): call for call in recorder.trace(1).calls}


def test_a_linear_layer_asks_for_its_products_and_tensors_once() -> None:
    value, weight, bias = torch.zeros(6, 5), torch.zeros(7, 5), torch.zeros(7)
    op = calls_of(lambda: functional.linear(value, weight, bias))["addmm", ""].op
    assert op.flops == 2 * 6 * 5 * 7
    assert op.read == 4 * (6 * 5 + 7 * 5 + 7)
    assert op.written == 4 * 6 * 7


@pytest.mark.parametrize(("groups", "kind"), [(1, "conv"), (2, "grouped"), (4, "depthwise")])
def test_a_convolution_asks_for_as_much_forward_as_for_each_gradient(
    groups: int, kind: str
) -> None:
    value = torch.zeros(2, 4, 8, 8, requires_grad=True)
    weight = torch.zeros(4, 4 // groups, 3, 3, requires_grad=True)
    found = calls_of(
        lambda: functional.conv2d(value, weight, padding=1, groups=groups).sum().backward()
    )
    products = [call.op for call in found.values() if call.op.flops]
    assert [op.kind for op in products] == [kind] * 3
    # Each of 2x4x8x8 outputs sums 9 x (4 / groups) products.
    assert {op.flops for op in products} == {2 * (2 * 4 * 8 * 8) * 9 * 4 // groups}
    assert found["convolution", ""].op.read == 4 * (2 * 4 * 64 + 4 * (4 // groups) * 9)
    assert found["convolution_backward", "weight"].op.written == 4 * 4 * (4 // groups) * 9


def test_a_convolution_copies_channels_of_a_larger_tensor_and_images_of_another_layout() -> None:
    filters = torch.zeros(4, 4, 3, 3, requires_grad=True)
    last = filters.detach().to(memory_format=torch.channels_last).requires_grad_()

    def copies(value: torch.Tensor, weight: torch.Tensor) -> int:
        with recorded() as recorder:
            recorder.begin()
            functional.conv2d(value, weight, padding=1).sum().backward()
            found = [call for call in recorder.trace(1).calls if call.op.name == "contiguous"]
        assert all(call.op.written == 4 * value.numel() for call in found)
        return sum(call.count for call in found)

    images = torch.zeros(2, 8, 6, 6)
    whole, part = images[:, :4].clone(), images[:, :4]
    gradient = 1  # of a sum, a scalar that is expanded
    assert copies(whole, filters) == gradient
    assert copies(part, filters) == gradient + 2  # forward, and for the gradient of the filters
    assert copies(whole, last) == gradient + 2
    assert copies(whole.to(memory_format=torch.channels_last), last) == gradient


def test_attention_counts_two_products_forward_and_five_backward() -> None:
    query, key, value = (torch.zeros(2, 3, length, 8, requires_grad=True) for length in (4, 6, 6))
    found = calls_of(
        lambda: functional.scaled_dot_product_attention(query, key, value).sum().backward()
    )
    forward, backward = (call.op.flops for call in found.values() if call.op.kind == "attention")
    assert forward == 2 * 2 * (2 * 3 * 4 * 6 * 8)
    assert backward == 5 * 2 * (2 * 3 * 4 * 6 * 8)


def test_views_cost_nothing_and_unknown_operators_are_named() -> None:
    with recorded() as recorder:
        value = torch.eye(4).view(2, 8).t().reshape(4, 4)
        recorder.begin()
        value.t()
        torch.linalg.det(value)
        trace = recorder.trace(1)
    assert "t" not in {call.op.name for call in trace.calls}
    assert trace.unknown == {"_linalg_det": 1}


def test_a_comparison_in_a_micro_step_that_stands_for_several_is_as_many_reads():
    with recorded() as recorder:
        recorder.times = 3
        torch.equal(torch.ones(2), torch.ones(2))
    assert recorder.trace(1).reads == 3


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("fp32", "cudnn_batch_norm"),
        ("fp16", "cudnn_batch_norm"),
        ("half-bn32", "cudnn_batch_norm"),
        ("half", "native_batch_norm"),
        ("bf16", "native_batch_norm"),
        ("bf16-sr", "native_batch_norm"),
    ],
)
def test_a_batch_norm_is_that_which_cuda_runs(recipe, name) -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(64, 4))
    subject = Subject(
        "net", model, lambda model, batch: model(batch).float().mean(),
        [torch.zeros(2, 8, 2, 2)], lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )  # fmt: skip
    norms = {call.op for call in traced(subject, recipe).calls if call.op.kind == "norm"}
    assert {op.name for op in norms} == {name, f"{name}_backward"}
    assert {op.groups for op in norms} == {16}


def test_images_in_nhwc_are_copied_no_more_in_fp32_than_in_half() -> None:
    layers = [nn.Conv2d(64, 64, size, padding=size // 2, bias=False) for size in (1, 3, 1)]
    model = nn.Sequential(*layers, nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    model = model.to(memory_format=torch.channels_last)
    images = torch.zeros(2, 64, 56, 56).contiguous(memory_format=torch.channels_last)
    subject = Subject(
        "net", model, lambda model, batch: model(batch).float().mean(), [images],
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )  # fmt: skip
    for recipe in ("fp32", "fp16"):  # a CPU's own choice of a kernel depends on the batch
        calls = traced(subject, recipe, 256).calls
        assert [call for call in calls if call.op.name == "contiguous"] == [], recipe
