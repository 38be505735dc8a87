"""Modules and operators in a format of their own: seen at dispatch, in values and in refusals."""

from __future__ import annotations

import copy
from collections import defaultdict
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep import Engine, recipe

AUTOCAST = ["fp16", "bf16", "fp8"]
HALF_PARAMS = ["half", "half-bn32", "o2", "bf16-true", "bf16-sr", "bf16-kahan"]
HALVES = (torch.float16, torch.bfloat16)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.q(x) @ self.k(x).mT).softmax(dim=-1) @ self.v(x)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm, self.up = Attention(), nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.up(self.norm(self.attn(x) + x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x).mean(1))


class Observed(TorchDispatchMode):
    """Formats in which products and softmaxes really run, by the shape of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[torch.dtype]] = defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").removeprefix("_").split(".")[0]
        if isinstance(result, torch.Tensor):
            self.seen[name].append(result.dtype)
        return result


def net() -> Net:
    torch.manual_seed(0)
    return Net()


BATCH = torch.randn(8, 3, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 4


def engine_for(name: str, exceptions: dict[str, str], model: nn.Module | None = None) -> Engine:
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    settings = {"base": name, "exceptions": exceptions}
    return Engine(model, optimizer, recipe=settings)


def train(engine: Engine, steps: int = 3) -> list[float]:
    losses = []
    for _ in range(steps):
        with engine.autocast():
            loss = functional.cross_entropy(engine.model(BATCH).float(), LABELS)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    return losses


def observed(engine: Engine) -> Observed:
    """Formats of one forward and backward pass."""
    with engine.autocast(), Observed() as mode:
        loss = functional.cross_entropy(engine.model(BATCH).float(), LABELS)
    with mode:
        engine.backward(loss)
    return mode


def formats_around(engine: Engine, module: nn.Module) -> dict[str, set[torch.dtype]]:
    """Formats of products in a module, forward, and of the gradients of what it returns."""
    seen: dict[str, set[torch.dtype]] = {"forward": set(), "backward": set()}

    class Inside(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.name() in {"aten::addmm", "aten::mm", "aten::bmm"}:
                seen["forward"].add(result.dtype)
            return result

    own = type(module).forward

    def watched(*args, **kwargs):
        with Inside():
            return own(module, *args, **kwargs)

    module.forward = watched
    with engine.autocast():
        loss = functional.cross_entropy(engine.model(BATCH).float(), LABELS)
    del module.forward
    gradients = Observed()
    with gradients:
        engine.backward(loss)
    seen["backward"] = set(gradients.seen["mm"])
    return seen


@pytest.mark.parametrize("name", [*AUTOCAST, *HALF_PARAMS])
def test_a_module_computes_in_fp32_while_others_stay_in_half(name: str) -> None:
    with engine_for(name, {"head": "fp32"}) as engine:
        head = formats_around(engine, engine.bare_model.head[0])["forward"]
        others = formats_around(engine, engine.bare_model.blocks[0].up)["forward"]
        assert head == {torch.float32}
        assert others <= ({torch.float32} if name == "fp8" else set(HALVES))
        assert all(torch.isfinite(torch.tensor(train(engine))))


@pytest.mark.parametrize("name", ["fp16", "half", "o2"])
def test_the_backward_of_an_excepted_module_is_fp32_too(name: str) -> None:
    everything = {"blocks": "fp32", "head": "fp32"}
    with engine_for(name, everything) as engine:
        assert formats_around(engine, engine.bare_model.head[0])["backward"] == {torch.float32}
    with engine_for(name, {"head.2": "fp32"}) as engine:
        both = formats_around(engine, engine.bare_model.head[2])["backward"]
        assert torch.float32 in both
        assert both & set(HALVES)


@pytest.mark.parametrize("name", ["fp16", "bf16", "half", "o2", "bf16-sr"])
def test_a_model_that_is_all_exception_trains_as_in_fp32(name: str) -> None:
    reference = net()
    with Engine(reference, torch.optim.SGD(reference.parameters(), lr=0.05)) as engine:
        exact = train(engine)
    with engine_for(name, {"blocks": "fp32", "head": "fp32"}) as engine:
        found = train(engine)
    # Inputs and outputs of half models are cast; nothing else differs.
    tolerance = 0 if name in AUTOCAST else 5e-3
    assert found == pytest.approx(exact, abs=tolerance, rel=tolerance or 1e-6)


@pytest.mark.parametrize("name", ["half", "o2", "bf16-true"])
def test_excepted_parameters_are_fp32_and_have_no_masters(name: str) -> None:
    model = net()
    kept = copy.deepcopy(model.head.state_dict())
    with engine_for(name, {"head.*": "fp32"}, model) as engine:
        assert {p.dtype for p in model.head.parameters()} == {torch.float32}
        assert {p.dtype for p in model.blocks[0].attn.parameters()} <= set(HALVES)
        held = {p for group in engine.optimizer.param_groups for p in group["params"]}
        assert set(model.head.parameters()) <= held
        for key, value in model.head.state_dict().items():
            assert torch.equal(value, kept[key])


@pytest.mark.parametrize("name", ["fp16", "bf16", "half", "o2"])
def test_an_operator_computes_in_its_own_format_forward_and_backward(name: str) -> None:
    with engine_for(name, {"op:softmax": "fp32", "op:matmul": "fp32"}) as engine:
        seen = observed(engine).seen
        assert set(seen["softmax"]) == {torch.float32}
        assert set(seen["softmax_backward_data"]) == {torch.float32}
        assert set(seen["bmm"]) == {torch.float32}
        assert set(seen["addmm"]) & set(HALVES), "linear layers are no exception"
    with engine_for(name, {"op:gelu": "fp32"}) as engine:
        assert set(observed(engine).seen["bmm"]) <= set(HALVES)


@pytest.mark.parametrize("operator", ["hardswish", "hardsigmoid"])
def test_an_activation_that_torch_does_not_list_can_be_an_exception(operator: str) -> None:
    formats: list[torch.dtype] = []

    class Activated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            active = getattr(nn.functional, operator)(self.head(x))
            formats.append(active.dtype)
            return active

    model = Activated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exceptions = {f"op:{operator}": "fp32"}
    with (
        Engine(model, optimizer, recipe={"base": "fp16", "exceptions": exceptions}) as engine,
        engine.autocast(),
    ):
        engine.model(torch.randn(2, 4))
    assert formats == [torch.float32]


def test_an_operator_of_one_module_leaves_others_alone() -> None:
    with engine_for("half", {"blocks.1.attn.softmax": "fp32"}) as engine:
        assert observed(engine).seen["softmax"] == [torch.float16, torch.float32]
    with engine_for("half", {"blocks.*.attn.softmax": "fp32"}) as engine:
        assert observed(engine).seen["softmax"] == [torch.float32] * 2


def test_an_overflow_in_half_is_mended_by_the_exception() -> None:
    model = net()
    with torch.no_grad():
        for layer in (model.blocks[1].attn.q, model.blocks[1].attn.k):
            layer.weight.mul_(4000)
    with engine_for("fp16", {"op:gelu": "fp32"}, copy.deepcopy(model)) as engine:
        assert not torch.isfinite(torch.tensor(train(engine, 1))).all()
    with engine_for("fp16", {"blocks.1.attn": "fp32"}, model) as engine:
        assert torch.isfinite(torch.tensor(train(engine, 1))).all()


class Squares(nn.Module):
    """Means of squares beyond fp16, in a module and in the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.linear = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = self.inner.linear(x.mean(1)) * 1000
        squares = large.view(8, 4, 4) * large.view(8, 4, 4)
        return self.head(squares.reshape(8, 16).div(1e6))


@pytest.mark.parametrize("name", ["half", "half-bn32", "o2"])
def test_results_of_exceptions_stay_wide_for_other_exceptions_alone(name: str) -> None:
    torch.manual_seed(0)
    model = Squares()
    exact = model(BATCH)
    with engine_for(name, {"op:mul": "fp32"}, copy.deepcopy(model)) as engine, engine.autocast():
        assert not engine.model(BATCH).isfinite().all()
    with engine_for(name, {"op:div": "fp32"}, copy.deepcopy(model)) as engine, engine.autocast():
        assert not engine.model(BATCH).isfinite().all()
    with engine_for(name, {"op:mul": "fp32", "op:div": "fp32"}, model) as engine:
        seen = Observed()
        with engine.autocast(), seen:
            found = engine.model(BATCH)
        assert seen.seen["addmm"] == [torch.float16] * 2
        assert torch.allclose(found.float(), exact, rtol=2e-2, atol=1e-2)
        assert found.dtype == (torch.float32 if name == "o2" else torch.float16)


def test_the_longest_pattern_decides_whatever_the_order() -> None:
    for exceptions in (
        {"blocks.*": "fp32", "blocks.1.attn": "fp16"},
        {"blocks.1.attn": "fp16", "blocks.*": "fp32"},
    ):
        with engine_for("o2", exceptions) as engine:
            model = engine.bare_model
            assert model.blocks[0].attn.q.weight.dtype == torch.float32
            assert model.blocks[1].attn.q.weight.dtype == torch.float16
            assert model.blocks[1].up.weight.dtype == torch.float32
            assert all(torch.isfinite(torch.tensor(train(engine))))


class Listed(nn.Module):
    """Calls the layers of a list, which has no forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


@pytest.mark.parametrize("name", ["fp16", "o2"])
def test_naming_a_list_names_the_modules_in_it(name: str) -> None:
    engine = engine_for(name, {"layers": "fp32"}, Listed())
    seen = observed(engine).seen
    products = {dtype for operator in ("addmm", "mm") for dtype in seen[operator]}
    assert products == {torch.float32}
    engine.close()


@pytest.mark.parametrize("exception", ["head", "head.linear"])
def test_a_module_whose_forward_was_replaced_is_an_exception_too(exception: str) -> None:
    class Head(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.linear(x, self.weight, self.bias)

    model = net()
    model.head = Head(16, 4)
    calls: list[torch.dtype] = []
    own = model.head.forward

    def replaced(x: torch.Tensor) -> torch.Tensor:
        result = own(x)
        calls.append(result.dtype)
        return result

    model.head.forward = replaced
    with engine_for("fp16", {exception: "fp32"}, model) as engine:
        train(engine, 1)
    assert model.head.forward is replaced
    with engine_for("fp16", {"blocks": "fp32"}, model) as engine:
        train(engine, 1)
    assert calls == [torch.float32, torch.float16]


def test_an_excepted_module_without_parameters_leaves_the_autocast_of_its_model(monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=-1)).to("meta")
    exceptions = recipe({"base": "fp16", "exceptions": {"1": "fp32"}})
    technique = exceptions.techniques()[-1]
    technique.prepare([model], [])
    left = []

    def autocast(device_type: str, **_: object) -> nullcontext[None]:
        left.append(device_type)
        return nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)
    model(torch.ones(2, 4, device="meta"))
    assert left == ["meta"]


def test_closing_gives_modules_their_class_back() -> None:
    model = net()
    kinds = [type(module) for module in model.modules()]
    engine = engine_for("fp16", {"head": "fp32", "blocks.0.attn.softmax": "fp32"}, model)
    assert [type(module) for module in model.modules()] != kinds
    train(engine)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(BATCH), model(BATCH))
    engine.close()
    assert [type(module) for module in model.modules()] == kinds
    assert not any(hasattr(module, "_exception") for module in model.modules())


@pytest.mark.parametrize(
    ("name", "exceptions", "said"),
    [
        ("fp16", {"heads.*": "fp32"}, "'heads.*', which matches no module; .*did you mean 'head"),
        ("fp16", {"head.0.*": "fp32"}, "matches no module; .*; 'head.0' is the module itself"),
        ("fp16", {"op:sotfmax": "fp32"}, "operator 'sotfmax', .*did you mean 'softmax'"),
        ("fp16", {"head": "fp61"}, "'head' the format 'fp61'; allowed: 'fp32', .*mean 'fp16'"),
        ("fp16", {"blocks.0.attn.sotfmax": "fp32"}, "matches no module"),
        ("fp16", ["head"], r"exceptions is \['head'\]; allowed: a mapping such as"),
        ("fp16", {}, "exceptions is {}; allowed: a mapping"),
        ("fp32", {"head": "fp32"}, "everything is in fp32; write autocast='fp16'"),
        ("o2", {"head": "bf16"}, "'bf16', but the parameters .* 'fp16'; allowed: 'fp32' or 'fp16'"),
    ],
)
def test_what_cannot_be_excepted_is_refused(name: str, exceptions: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine_for(name, exceptions)


def test_exceptions_compose_and_print() -> None:
    head = recipe({"base": "fp16", "name": "a", "exceptions": {"head": "fp32"}})
    softmax = recipe({"base": "fp16", "name": "b", "exceptions": {"op:softmax": "fp32"}})
    both = head + softmax
    assert both == softmax + head
    assert both.settings()["exceptions"] == {"head": "fp32", "op:softmax": "fp32"}
    assert "exceptions head:fp32 op:softmax:fp32" in str(both)
    assert recipe({"name": both.name, **both.settings()}) == both
    other = recipe({"base": "fp16", "name": "c", "exceptions": {"head": "bf16"}})
    with pytest.raises(ValueError, match="'a' and 'c' disagree on exceptions"):
        head + other


@pytest.mark.parametrize("name", ["fp16", "o2"])
def test_a_state_saved_with_exceptions_resumes_bitwise(name: str) -> None:
    exceptions = {"head": "fp32", "op:softmax": "fp32"}
    with engine_for(name, exceptions) as engine:
        train(engine, 2)
        saved = copy.deepcopy((engine.bare_model.state_dict(), engine.state_dict()))
        went_on = train(engine, 2)
    with engine_for(name, exceptions) as engine:
        engine.bare_model.load_state_dict(saved[0])
        engine.load_state_dict(saved[1])
        assert train(engine, 2) == went_on


def test_a_compiled_model_keeps_its_exceptions() -> None:
    model = net()
    engine = engine_for("bf16", {"head": "fp32"}, model)
    compiled = torch.compile(engine.model, backend="eager")
    with engine, torch.no_grad(), engine.autocast():
        assert torch.equal(compiled(BATCH), engine.model(BATCH))
        assert compiled(BATCH).dtype == torch.float32
