"""An eps that is zero in the format of the updates is said when the engine is built."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from halfstep.doctor import Watch, diagnose
from halfstep.engine import Engine, EngineWarning

from .tiny import mlp

LOST = "eps = 1e-08 is 0 in fp16"
SAFE = {
    "master weights": (AdamW, "o2", {}),
    "half parameters with masters": (
        AdamW,
        {"base": "half", "master_weights": True},
        {},
    ),
    "fp32 parameters": (AdamW, "fp16", {}),
    "bf16, which has fp32's range": (AdamW, "bf16-true", {}),
    "bf16, updated in fp32": (Adam, "bf16-sr", {}),
    "a larger eps": (AdamW, "half", {"eps": 1e-4}),
    "arithmetic in fp32": (AdamW, "half", {"fused": True}),
    "no eps": (SGD, "half", {}),
}


@pytest.mark.parametrize(
    ("build", "eps"), [(Adam, "1e-08"), (AdamW, "1e-08"), (RMSprop, "1e-08"), (Adagrad, "1e-10")]
)
@pytest.mark.parametrize("recipe", ["half", "half-bn32", "o3"])
def test_an_eps_of_zero_is_said_with_what_to_write_instead(build, eps: str, recipe: str) -> None:
    model = mlp()
    with pytest.warns(EngineWarning) as caught:
        Engine(model, build(model.parameters(), lr=1e-3), recipe=recipe)
    (said,) = [str(each.message) for each in caught]
    name = build.__name__
    assert said.startswith(f"eps = {eps} is 0 in fp16, the format of parameters of {name} under")
    assert f"write {name}(..., eps=1e-4), or recipe='o2'" in said
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", SAFE)
def test_nothing_is_said_of_what_is_safe(name: str) -> None:
    build, recipe, settings = SAFE[name]
    model = mlp()
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineWarning)
        Engine(model, build(model.parameters(), lr=1e-3, **settings), recipe=recipe).close()


def test_an_engine_that_is_refused_by_a_warning_leaves_all_as_it_was() -> None:
    model = mlp()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with pytest.raises(EngineWarning, match=LOST):  # errors here, by the settings of pytest
        Engine(model, optimizer, recipe="half")
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    with Engine(model, optimizer) as engine:
        engine.backward(model(torch.ones(2, 6)).mean())
        assert engine.step().stepped


@pytest.mark.filterwarnings("ignore::halfstep.engine.EngineWarning")
def test_doctor_says_the_same_of_such_a_run() -> None:
    with Watch() as watch:
        model = mlp()
        with Engine(model, AdamW(model.parameters(), lr=1e-3), recipe="half") as engine:
            for _ in range(3):
                loss = engine.model(torch.zeros(2, 6)).float().mean()
                engine.backward(loss)
                engine.step()
    (verdict,) = diagnose(watch.close()).verdicts
    assert verdict.code == "OPTIMIZER_EPS_UNDERFLOWS"
    assert verdict.finding.summary.startswith(LOST)
