"""When a model is compiled, for which batches, and what becomes of its optimizer."""

import pytest
import torch
from torch import nn

from halfstep.train.build.compiling import CompileWarning, multiplications
from halfstep.train.build.setup import set_up
from halfstep.train.loop.loop import train
from halfstep.train.store.metrics_log import read

CPU = torch.device("cpu")


@pytest.fixture
def always(monkeypatch):
    """Compile however small a model is, and let nothing of another test decide what is new."""
    monkeypatch.setattr("halfstep.train.build.compiling.PAYS_FROM", 0)
    torch._dynamo.reset()


def losses(run):
    return [line["loss"] for line in read(run) if "loss" in line]


@pytest.mark.usefixtures("always")
def test_a_run_compiles_once_to_train_and_once_to_evaluate(tiny, tmp_path, monkeypatch):
    # The last batch of the training images is smaller than the others, and of the others, too.
    convolutions = []

    def compiler(graph, _):
        nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
        if any(
            "conv2d" in str(node.target) for node in nodes
        ):  # half casts are graphs of their own
            convolutions.append(graph)
        return graph.forward

    for name, compiled in (
        ("compiled", lambda model: model.compile(backend=compiler)),
        ("eager", lambda _: None),
    ):
        monkeypatch.setattr("halfstep.train.build.models.compiled", compiled)
        config = tiny("model.compile=true", "log_every=1", "epochs=1", recipe="o2")
        train(config, tmp_path / name, quiet=True)
    assert len(convolutions) == 2
    assert losses(tmp_path / "compiled") == losses(tmp_path / "eager")


def test_a_small_model_is_not_compiled_on_a_cpu(tiny, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", compiled.append)
    options = ("model.compile=true", "model.args.channels=[1,1,1,1]", "batch_size=8")
    with pytest.warns(CompileWarning, match=r"below 10 million"):
        setup = set_up(tiny(*options), CPU)
    assert not compiled
    assert setup.compiled_for is None
    assert not setup.engine.optimizer.param_groups[0]["fused"]


def test_multiplications_of_an_image_are_counted():
    convolution, linear = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Linear(4 * 8 * 8, 10)
    model = nn.Sequential(convolution, nn.Dropout(), nn.Flatten(), linear)
    state = torch.get_rng_state()
    count = multiplications(model, torch.zeros(1, 3, 8, 8))
    assert count == 8 * 8 * 4 * 3 * 9 + 4 * 8 * 8 * 10
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_the_optimizer_of_a_compiled_model_updates_in_one_kernel(tiny, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda _: None)
    groups = {
        compiled: set_up(tiny(f"model.compile={compiled}"), CPU).engine.optimizer.param_groups
        for compiled in ("true", "false")
    }
    assert [group["fused"] for group in groups["true"]] == [True]
    assert [group["fused"] for group in groups["false"]] == [False]
