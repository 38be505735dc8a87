"""What cannot be advised on is refused in one line that names it."""

import itertools
import json
import sys

import pytest
import torch

from halfstep.advise import subject
from halfstep.cli import main
from halfstep.train.config import files

MODULE = """
import random
import threading
import torch
from torch import nn

def model(): return nn.Linear(4, 3)
def batches(): return [(torch.ones(8, 4), torch.arange(8) % 3)]

def raises(): raise RuntimeError("a line\\nand another")
def exits(): raise SystemExit(3)
def nothing(): return None
def frozen(): return model().requires_grad_(False)

class Locked(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.lock = threading.Lock()

def ordered(): return [(torch.full((8, 4), float(at)), torch.arange(8) % 3) for at in range(8)]
def seeded():
    random.seed(0)
    torch.manual_seed(0)
    return ordered()
def empty(): return iter(())
def number(): return 5
def alone(): return [torch.ones(8, 4)]
def regression(): return [(torch.ones(8, 4), torch.ones(8))]
def wide(): return [(torch.ones(8, 7), torch.arange(8) % 3)]
def no_class(): return [(torch.ones(8, 4), torch.full((8,), 9))]
def nan(): return [(torch.full((8, 4), float("nan")), torch.arange(8) % 3)]
def torn():
    yield from batches()
    raise OSError("torn")

def one_argument(model): return model
def of_outputs(outputs, targets): return nn.functional.cross_entropy(outputs, targets)
def vector(model, batch): return model(batch[0])
def detached(model, batch): return model(batch[0]).sum().detach()
def plain(model, batch): return 1.0
"""


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    """A file with models, batches and losses in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"subject_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    return f"{name}.py"


@pytest.fixture
def advise(capsys, code):
    def run(model="model", batches="batches", *more, loss=None):
        of_loss = ["--loss", f"{code}:{loss}"] if loss else []
        given = [f"{code}:{model}", "--batches", f"{code}:{batches}", *of_loss, *more]
        exit_code = main(["advise", "--no-verify", "--recipes", "fp32", *given])
        out, err = capsys.readouterr()
        lines = err.splitlines(keepends=True)
        err = "".join(line for line in lines if not line.startswith("advise: "))
        assert err.count("\n") <= 1
        return exit_code, err.replace(code, "CODE"), out

    return run


def test_what_can_be_trained_is_advised_on(advise):
    code, err, out = advise()
    assert (code, err) == (0, "")
    assert "fp32" in out


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("raises", "error: CODE:raises fails: RuntimeError: a line and another\n"),
        ("exits", "error: CODE:exits fails: SystemExit: 3\n"),
        ("nothing", "error: CODE:nothing returns NoneType; allowed: a torch.nn.Module\n"),
        ("frozen", "error: CODE:frozen returns a model without a parameter to train\n"),
        ("Locked", "error: CODE:Locked cannot be copied, and advise trains only copies: "),
        ("modle", "has no function 'modle'; did you mean 'model'?\n"),
    ],
)
def test_function_that_gives_no_model_to_train(advise, model, said):
    code, err, _ = advise(model)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ("raises", "CODE:raises fails: RuntimeError: a line and another"),
        ("empty", "CODE:empty gives no batch; allowed: an iterable of (inputs, targets)"),
        ("number", "CODE:number fails: TypeError: 'int' object is not iterable"),
        ("torn", "CODE:torn fails: OSError: torn"),
        ("alone", "a batch is a Tensor; allowed without --loss: (inputs, targets)"),
        (
            "regression",
            "targets are torch.float32 of shape [8], and outputs have the shape [8, 3]; allowed",
        ),
        ("wide", "CODE:model fails on a batch even in fp32: RuntimeError: "),
        (
            "no_class",
            "cross_entropy fails on outputs of shape [8, 3] and targets of shape [8] (for another",
        ),
        ("nan", "is not finite in step 1, even in fp32; advise needs a model"),
    ],
)
def test_function_that_gives_no_batches_to_train_on(advise, batches, said):
    code, err, _ = advise("model", batches)
    assert code == 2
    assert said in err


def test_a_batch_that_a_trace_cannot_take_is_called_what_it_is(advise):
    code, err, _ = advise("model", "alone", "--gpu", "t4", "--cost-only")
    assert code == 2
    assert "a batch is a Tensor; allowed without --loss" in err


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("one_argument", "--loss is 'CODE:one_argument', whose arguments are (model); allowed: a"),
        (
            "of_outputs",
            "CODE:of_outputs fails on a batch even in fp32, called with (model, batch), not (out",
        ),
        ("vector", "the loss of CODE:model is a Tensor of shape [8, 3]; allowed: a tensor of one"),
        ("detached", "the loss of CODE:model has no gradient; allowed: a loss that depends on"),
        ("plain", "the loss of CODE:model is a float; allowed: a tensor of one number"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--gpu", "t4", "--cost-only")], ids=["examined", "traced"])
def test_function_that_gives_no_loss(advise, loss, said, more):
    code, err, _ = advise("model", "batches", *more, loss=loss)
    assert code == 2
    assert said in err


def test_a_file_without_a_function_is_refused(code, capsys):
    assert main(["advise", f"{code}:model", "--batches", code]) == 2
    assert f"--batches is {code!r}, without a function; allowed: " in capsys.readouterr().err
    assert main(["advise", f"{code}:model", "--batches", "data"]) == 2
    assert "allowed: FILE.py:FUNCTION, such as data.py:batches" in capsys.readouterr().err


def test_a_file_alone_is_answered_with_its_functions(code, capsys):
    assert main(["advise", code, "--batches", f"{code}:batches"]) == 2
    error = capsys.readouterr().err
    assert f"the model is {code!r}, without a function; allowed: {code}:model, {code}:bat" in error
    assert error.count("\n") == 1


def test_fewer_batches_than_are_used_are_noted(code, capsys):
    given = ["--recipes", "fp32", "--gpu", "t4", "--cost-only"]
    assert main(["advise", f"{code}:model", "--batches", f"{code}:batches", *given]) == 0
    assert "advise: only 1 batch instead of 8, so they are repeated" in capsys.readouterr().err


def test_a_models_optimizer_is_chosen_and_said(advise):
    code, _, out = advise("model", "batches", "--optimizer", "adamw", "--lr", "0.002")
    assert code == 0
    assert "8 steps in fp32 with adamw, learning rate 0.002; " in out
    assert "assuming" not in out
    code, err, _ = advise("model", "batches", "--optimizer", "adamx")
    assert code == 2
    assert "optimizer.name is 'adamx'" in err


@pytest.mark.parametrize("given", [["--lr", "0"], ["--optimizer", "sgd"], ["--loss", "x.py:x"]])
def test_flags_of_a_function_are_refused_for_a_config(given, capsys):
    assert main(["advise", "digits", *given]) == 2
    error = capsys.readouterr().err
    assert f"{given[0]} can be given only for a function that returns a model" in error
    assert error.count("\n") == 1


def test_optimizer_of_a_model_is_that_of_a_config(code):
    found = subject.find(
        f"{code}:model", batches=f"{code}:batches", optimizer="adam", learning_rate=0.5
    )
    made = found.optimizer(found.model)
    assert type(made) is torch.optim.Adam
    assert made.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("batches", ["ordered", "seeded"])
def test_batches_of_a_list_have_another_order_under_each_seed(code, batches):
    about = subject.of_code(f"{code}:model", f"{code}:{batches}", None, "sgd", 0.1, seed=0)

    def order(seed):
        drawn = itertools.islice(about.training(seed), 8)
        return [int(images[0, 0]) for images, _ in drawn]

    first, second = order(0), order(1)
    assert sorted(first) == sorted(second) == list(range(8))
    assert first != second
    assert order(0) == first


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_seed_that_torch_has_not(advise, seed):
    code, err, _ = advise("model", "batches", "--seed", seed)
    assert code == 2
    assert "Invalid value for '--seed'" in err


def test_file_is_found_wherever_it_lies(code, tmp_path, monkeypatch, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    for file in (f"../{code}", str(tmp_path / code)):
        given = ["advise", f"{file}:model", "--batches", f"{file}:batches", "--recipes", "fp32"]
        assert main(given) == 0
        del sys.modules[code.removesuffix(".py")]
        sys.path.remove(str(tmp_path))
    assert main(["advise", "nowhere.py:model", "--batches", f"{code}:batches"]) == 2
    assert capsys.readouterr().err.endswith("but there is no file 'nowhere.py'\n")


@pytest.mark.parametrize(
    "schedule",
    [
        ["schedule.name=cosine", "schedule.warmup=0.25"],
        ["schedule.name=step", "schedule.every_epochs=0.01", "schedule.gamma=0.5"],
    ],
)
def test_schedule_of_a_config_is_shortened_to_the_steps_there_are(schedule):
    about = subject.of_config(files.load("digits", ["epochs=50", *schedule]))
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    moving = about.schedule(optimizer, 20)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        moving.step()
    assert max(rates) == pytest.approx(1.0)
    assert rates[-1] < 0.05


def test_a_config_whose_batch_is_larger_than_its_training_set_is_refused():
    config = files.load("digits", ["batch_size=1348"])
    with pytest.raises(ValueError, match=r"^batch_size is 1348, but .* has 1347 images; write"):
        subject.of_config(config)


def test_a_library_model_needs_no_data(capsys) -> None:
    asked = ["advise", "timm:resnet18", "--gpu", "t4", "--recipes", "fp16", "--batch-size", "16"]
    assert main([*asked, "--shape", "3x32x32", "--classes", "7", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predicted"]["rows"]
    assert [(row["recipe"], row["batch"]) for row in rows] == [("fp32", 16), ("fp16", 16)]


def test_a_config_without_its_data_set_has_the_cost_that_it_has_with_it(
    tmp_path, capsys, monkeypatch
) -> None:
    asked = ["--cost-only", "--gpu", "t4", "--recipes", "fp16", "--json"]
    assert main(["advise", "digits", *asked]) == 0
    (row, _), shape = json.loads(capsys.readouterr().out)["predicted"]["rows"], "1x24x24"
    monkeypatch.setattr("halfstep.train.data.load", lambda *_, **__: pytest.fail("data was read"))
    assert main(["advise", "digits", *asked, "--shape", shape, "--classes", "10"]) == 0
    found, _ = json.loads(capsys.readouterr().out)["predicted"]["rows"]
    assert found == row
