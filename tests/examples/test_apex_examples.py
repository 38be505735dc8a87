"""Programs written for Apex, through `import apex`: their losses, and their loss scales.

The reference is the same program over plain PyTorch: `amp` is replaced by a few lines that scale
nothing, cast nothing, and skip a step whose gradients are not finite.
"""

import importlib.util
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import halfstep.apex
from halfstep.apex.__main__ import main as run_with_apex

EXAMPLES = Path(__file__).parents[2] / "examples" / "apex"
STEPS = 12
COMPARED = 10
"""A GAN goes its own way from there."""
TOLERANCE = {"O0": 0.0, "O1": 1e-3, "O2": 1e-3, "O3": 1e-2}
"""Of the losses, which are between 0.5 and 2.5, in absolute terms."""
IMAGENET_TOLERANCE = {"O0": 0.0, "O1": 5e-3, "O2": 5e-3, "O3": 5e-3}
DYNAMIC = ["--loss-scale", "dynamic"]
OVERFLOWS = [*DYNAMIC, "--overflow-at", "3", "7"]


class Plain:
    """fp32 PyTorch behind the four names of amp that the programs use."""

    @staticmethod
    def initialize(models, optimizers, **_):
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            optimizer.register_step_pre_hook(drop_nonfinite)
        return models, optimizers

    @staticmethod
    @contextmanager
    def scale_loss(loss, *_, **__):
        yield loss

    @staticmethod
    def state_dict():
        return {"loss_scaler0": {"loss_scale": 1.0}}


def drop_nonfinite(optimizer, *_):
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not all(param.grad.isfinite().all() for param in params if param.grad is not None):
        for param in params:
            param.grad = None  # an optimizer leaves a parameter without a gradient alone


@pytest.fixture(autouse=True)
def _apex():
    halfstep.apex.install()
    yield
    halfstep.apex.amp.init(enabled=False)
    halfstep.apex.uninstall()


def load(name):
    spec = importlib.util.spec_from_file_location(f"apex_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def references():
    return {}


def losses(steps, names):
    return torch.tensor([[getattr(step, name) for name in names] for step in steps[:COMPARED]])


def assert_close_to_plain(references, name, args, names, steps, tolerance):
    key = (name, *args)
    if key not in references:
        program = load(name)
        program.amp = Plain
        references[key] = losses(program.main(args), names)
    torch.testing.assert_close(losses(steps, names), references[key], rtol=0, atol=tolerance)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("options", [[], OVERFLOWS], ids=["", "overflows"])
def test_two_models_and_three_losses_train_as_in_fp32(references, level, options):
    args = ["--steps", str(STEPS), *options]
    steps = load("dcgan").main(["--opt-level", level, *args])
    names = ["loss_d", "loss_g"]
    assert_close_to_plain(references, "dcgan", args, names, steps, TOLERANCE[level])
    scales = [step.scales for step in steps]
    if options:
        second = [65536.0] * 3 + [32768.0] * 4 + [16384.0] * 5
        assert scales == [[65536.0, scale, 65536.0] for scale in second]
    else:
        assert scales == [[1.0 if level in {"O0", "O3"} else 65536.0] * 3] * STEPS


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("options", [[], OVERFLOWS], ids=["", "overflows"])
def test_a_classifier_trains_as_in_fp32(references, level, options):
    args = ["--epochs", "1", "--steps", str(STEPS), *options]
    steps = load("imagenet").main(["--opt-level", level, *args])
    tolerance = IMAGENET_TOLERANCE[level]
    assert_close_to_plain(references, "imagenet", args, ["loss"], steps, tolerance)
    scales = [step.scale for step in steps]
    if options:
        assert scales == [65536.0] * 3 + [32768.0] * 4 + [16384.0] * 5
    else:
        assert scales == [1.0 if level in {"O0", "O3"} else 65536.0] * STEPS


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_resumed_classifier_goes_on_bitwise_and_its_scale_grows_in_time(tmp_path, level):
    path = tmp_path / "checkpoint.pt"
    args = ["--opt-level", level, "--steps", "4", *DYNAMIC]
    program = load("imagenet")
    whole = program.main([*args, "--epochs", "2"])
    program.main([*args, "--epochs", "1", "--checkpoint", str(path)])
    resumed = program.main([*args, "--epochs", "2", "--resume", str(path)])
    assert resumed == whole[4:]

    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint["amp"] == {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 4}}
    checkpoint["amp"]["loss_scaler0"] = {"loss_scale": 1024.0, "unskipped": 1997}
    torch.save(checkpoint, path)
    resumed = program.main([*args, "--epochs", "2", "--resume", str(path)])
    assert [step.scale for step in resumed] == [1024.0, 1024.0, 2048.0, 2048.0]


def test_options_are_passed_as_strings():
    args = ["--opt-level", "O3", "--keep-batchnorm-fp32", "True", "--loss-scale", "128.0"]
    steps = load("imagenet").main([*args, "--epochs", "1", "--steps", "2"])
    assert [step.scale for step in steps] == [128.0, 128.0]


@pytest.mark.parametrize("name", ["dcgan", "imagenet"])
def test_the_programs_run_from_the_command_line(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run_with_apex([str(EXAMPLES / f"{name}.py"), "--opt-level", "O1", "--steps", "1"]) == 0
    assert "Selected optimization level O1" in capsys.readouterr().out
