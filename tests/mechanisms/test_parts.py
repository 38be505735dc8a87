"""The seam of a recipe: a made-up format, added by one part, one technique and one row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from halfstep import Engine
from halfstep.cli import app
from halfstep.engine.parallel.fsdp import shard
from halfstep.kernels.hardware import Means
from halfstep.mechanisms import Part
from halfstep.mechanisms.technique import Stage, Technique
from halfstep.recipe import PARTS, RECIPES, Recipe, recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.mechanisms import Use


class TruncatedInputs(Technique):
    """Linear layers see inputs with 4 bits of mantissa; gradients pass as they are."""

    stage = Stage.LAYERS

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        for layer in (m for model in models for m in model.modules() if isinstance(m, nn.Linear)):
            self._handles.append(layer.register_forward_pre_hook(truncated))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def truncated(_: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
    mantissa, exponent = torch.frexp(args[0].detach())
    return args[0] + (torch.ldexp((mantissa * 16).round() / 16, exponent) - args[0]).detach()


@pytest.fixture(autouse=True)
def _fp9() -> Iterator[None]:
    """Everything that a new format needs."""

    class Narrow(Part):
        field = "narrow"
        place = 55
        purpose = "Linear layers take inputs of 4 bits of mantissa."
        allowed = {"fp9": "one sign, four exponent and four mantissa bits"}

        def contradiction(self, whole: Any) -> str | None:
            if whole.get("float8"):
                return f"narrow={self.value!r} is no FP8; leave one of them out"
            return None

        def product_format(self) -> tuple[int, str]:
            return 3, "fp9"

        def means(self, device: torch.device) -> Means:
            if device.type == "meta":
                return Means("refused", "nothing computes there")
            return Means("rehearsed", "inputs are rounded, fp32 kernels")

        def techniques(self, whole: Any, *, seed: int) -> Iterable[Technique]:
            yield TruncatedInputs()

        def refuses(self, use: Use, whole: Any) -> str | None:
            return "its layers cannot be shared" if use == "fully_shard" else None

    RECIPES["fp9"] = Recipe("fp9", params="fp32", narrow="fp9"), "linear layers in fp9"
    yield
    del RECIPES["fp9"], PARTS["narrow"]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def test_no_two_fields_have_the_same_place() -> None:
    # A recipe would print, and compare, by the order in which it was composed.
    places = [part.place for part in PARTS.values()]
    assert len(set(places)) == len(places)


def test_it_composes_and_prints() -> None:
    both = recipe("fp9+tf32")
    assert both == recipe("tf32+fp9") == recipe("fp9") + recipe("tf32")
    assert str(both) == "tf32+fp9 (params fp32, matmul tf32, narrow fp9)"
    assert both.settings() == {"params": "fp32", "matmul": "tf32", "narrow": "fp9"}
    assert both.narrow == "fp9"
    assert recipe("bf16").narrow is None
    assert recipe({"base": "bf16", "narrow": "fp9"}).product_format == "fp9"
    printed = CliRunner().invoke(app, ["recipes", "fp9", "--markdown", "--on", "cpu"]).output
    assert "| fp9 | params fp32, narrow fp9 |" in printed
    assert "rehearsed |" in printed
    fields = CliRunner().invoke(app, ["recipes", "--fields", "--markdown"]).output
    assert "| narrow | fp9: one sign, four exponent and four mantissa bits |" in fields


def test_it_resolves_and_is_refused_where_it_must_be() -> None:
    assert recipe("fp9").resolve("cpu").those("rehearsed") == [
        "narrow fp9: rehearsed (inputs are rounded, fp32 kernels)"
    ]
    with pytest.raises(ValueError, match="narrow is 'fp8'; allowed: 'fp9'; did you mean 'fp9'"):
        recipe({"narrow": "fp8"})
    with pytest.raises(ValueError, match="contradicts itself: narrow='fp9' is no FP8"):
        recipe("fp9+fp8")
    model = net().to("meta")
    with pytest.raises(ValueError, match=r"'fp9' on meta: narrow fp9: refused \(nothing computes"):
        Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe="fp9")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        with pytest.raises(
            ValueError, match="'fp9' cannot be sharded: its layers cannot be shared"
        ):
            shard(net(), "fp9")
    finally:
        torch.distributed.destroy_process_group()


def test_it_trains_with_the_technique_and_gives_the_model_back() -> None:
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    labels = (inputs.sum(1) > 0).long()

    def losses(name: str) -> list[float]:
        model = net()
        found = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with Engine(model, optimizer, recipe=name) as engine:
            for _ in range(20):
                with engine.autocast():
                    loss = functional.cross_entropy(engine.model(inputs), labels)
                engine.backward(loss)
                engine.step()
                found.append(loss.item())
        assert not any(layer._forward_pre_hooks for layer in model.modules())
        return found

    narrow, exact = losses("fp9"), losses("fp32")
    assert narrow[-1] < 0.5 * narrow[0]
    assert narrow[0] != exact[0]
    assert narrow == pytest.approx(exact, abs=0.05)


def test_a_field_that_was_renamed_is_still_read() -> None:
    old = recipe({"params": "fp32", "autocast": "fp16", "accumulation": "fp16"})
    assert old.settings()["accumulator"] == "fp16"
