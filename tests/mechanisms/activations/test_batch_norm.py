"""Batch norm that packs its channels: as on a GPU, here with the reference of its kernels."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep import Engine
from halfstep.mechanisms.activations import batch_norm

from .nets import live, using


@pytest.fixture
def _packs_channels(monkeypatch):
    monkeypatch.setattr(batch_norm, "NORMALISED_AS_PACKED", {"cpu"})


class Calls(TorchDispatchMode):
    """Lists the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def close(one: torch.Tensor, other: torch.Tensor, most: float = 1e-3) -> bool:
    return bool((one - other).float().norm() <= most * other.float().norm())


@pytest.mark.parametrize("inplace", [False, True])
def test_packed_channels_give_the_gradients_of_unpacked_ones_in_fewer_passes(monkeypatch, inplace):
    """The packed tensor is the same, without a normalised one in memory, forward or backward.

    From the second step on, it is known that a rectifier follows the layer.
    """

    def run() -> tuple[list[torch.Tensor], list[list[str]]]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace),
            nn.Conv2d(16, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Dropout(0.0),
            nn.Conv2d(16, 4, 3),
        ).to(memory_format=torch.channels_last)  # fmt: skip
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.0), recipe="bf16+act4")
        grads, names = [], []
        for _ in range(3):
            images = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
            with Calls() as calls:
                with engine.autocast():
                    loss = engine.model(images).square().mean()
                engine.backward(loss)
            grads += [param.grad.clone() for param in model.parameters()]
            names.append([name.partition("::")[2] for name in calls.names])
            engine.step()
        return grads, names

    expected, plain = run()
    monkeypatch.setattr(batch_norm, "NORMALISED_AS_PACKED", {"cpu"})
    found, calls = run()
    assert all(map(close, found, expected))
    for step, (names, before) in enumerate(zip(calls, plain, strict=True)):
        changed = ("pack_normalised", "sub_", "mask", "unpack", "masked", "norm_sums",
                   "norm_gradients", "native_batch_norm_backward")  # fmt: skip
        counts = {name: names.count(name) - before.count(name) for name in changed}
        assert counts == {
            "pack_normalised": 2, "sub_": -2, "mask": -1 if step else 0, "unpack": -2,
            "masked": -1, "norm_sums": 2, "norm_gradients": 2, "native_batch_norm_backward": -2,
        }  # fmt: skip


def doubled(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def doubled_in_place(gradient: torch.Tensor) -> None:
    gradient.mul_(2)


USES = {
    "alone": lambda result: result.relu().square().sum(),
    "in place": lambda result: result.relu_().square().sum(),
    "twice": lambda result: result.relu().square().sum() + (result * 3).sin().sum(),
    "before it is changed": lambda result: result.sum() + result.relu_().square().sum(),
    "changed before": lambda result: result.mul_(-1).relu().square().sum(),
    "changed without a graph": lambda result: (
        result.detach().neg_(), result.relu().square().sum(),
    )[1],
    "rectified twice": lambda result: result.relu().square().sum() + (-result).relu().sum(),
    "another layout": lambda result: result.contiguous().relu().square().sum(),
    "a hook": lambda result: (result.register_hook(doubled), result.relu().square().sum())[1],
    "a hook in place": lambda result: (
        result.register_hook(doubled_in_place), result.relu().square().sum(),
    )[1],
    "relu6": lambda result: nn.functional.relu6(result).square().sum(),
}  # fmt: skip


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("affine", [True, False])
def test_whatever_uses_the_result_the_gradients_are_those_of_unpacked_values(
    monkeypatch, use, affine
):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(4, 24, 8, 8, generator=generator)
    values = values.to(memory_format=torch.channels_last)

    def run() -> list[list[torch.Tensor]]:
        layer = nn.BatchNorm2d(24, affine=affine)
        if affine:
            nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(2))
            nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(3))
        found = []
        with using("act4") as technique:
            for _ in range(2):  # the mask is taken in the second pass, if at all
                technique._draws.next_forward()
                given = values.clone().requires_grad_()
                use(layer(given * 1.0)).backward()
                found.append([given.grad, *(param.grad for param in layer.parameters())])
                layer.zero_grad()
        return found

    expected = run()
    monkeypatch.setattr(batch_norm, "NORMALISED_AS_PACKED", {"cpu"})
    for one, two in zip(run(), expected, strict=True):
        assert all(close(a, b, 1e-5) for a, b in zip(one, two, strict=True))


@pytest.mark.usefixtures("_packs_channels")
def test_frozen_parameters_get_no_gradient_and_half_ones_theirs_in_half():
    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.BatchNorm2d(16).to(dtype)
        layer.bias.requires_grad_(requires_grad=False)
        given = torch.randn(4, 16, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)
        with using("act8"):
            layer(given.requires_grad_() * 1.0).relu().sum().backward()
        assert layer.bias.grad is None
        assert layer.weight.grad.dtype == given.grad.dtype == dtype


@pytest.mark.usefixtures("_packs_channels")
def test_a_second_backward_is_refused_or_gives_the_same():
    layer = nn.BatchNorm2d(16)
    given = torch.randn(4, 16, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    with using("act4"):
        loss = layer(given * 1.0).relu().square().sum()
    loss.backward(retain_graph=True)
    first, given.grad = given.grad, None
    loss.backward()
    assert torch.equal(given.grad, first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    with using("act4"):
        loss = layer(given * 1.0).relu().square().sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, given, create_graph=True)


@pytest.mark.usefixtures("_packs_channels")
def test_nothing_is_left_of_a_pass():
    layer = nn.BatchNorm2d(16)
    given = torch.randn(4, 16, 8, 8).to(memory_format=torch.channels_last).requires_grad_()

    def run() -> int:
        with using("act4"):
            layer(given * 1.0).relu().square().sum().backward()
        layer.zero_grad()
        given.grad = None
        gc.collect()
        return live()

    run()
    assert run() == run()


@pytest.mark.usefixtures("_packs_channels")
def test_a_compressed_layer_keeps_its_codes_and_its_mask_until_the_backward():
    """Not its input, nor a gradient afterwards, although the loss is kept."""
    layer = nn.BatchNorm2d(16)
    given = torch.randn(4, 16, 8, 8).to(memory_format=torch.channels_last).requires_grad_()

    def large() -> list[int]:
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in kept}
        return sorted(each.nbytes() for each in storages.values() if each.nbytes() >= 512)

    before = large()
    with using("act4"):
        loss = layer(given * 1.0).relu().sum()
    codes, mask = given.numel() // 256 * (128 + 4), given.numel() // 8
    assert sorted([*before, codes, mask]) == large()
    loss.backward()
    assert sorted([*before, given.grad.nbytes]) == large()
