"""Notes that send a program to the drop-in promise only what the drop-in has."""

import importlib

import pytest

from halfstep.migrate.rewriting.leftovers import DROP_IN, leftover

from .conftest import migrate


@pytest.mark.parametrize("module", DROP_IN)
def test_the_drop_in_has_what_notes_promise(module):
    path = module.removeprefix("apex.")
    found = importlib.import_module(f"halfstep.apex.{path}")
    for name in DROP_IN[module]:
        assert hasattr(found, name) or importlib.import_module(f"{found.__name__}.{name}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("apex.fp16_utils.network_to_half", "`python -m halfstep.apex` runs it"),
        ("apex.contrib.xentropy.SoftmaxCrossEntropyLoss", "`python -m halfstep.apex` runs it"),
        ("amp_C.multi_tensor_l2norm", "`python -m halfstep.apex` runs it"),
        ("amp_C.multi_tensor_lamb", "it needs NVIDIA's own Apex"),
        ("apex.RNN.models", "it needs NVIDIA's own Apex"),
        ("apex.contrib.sparsity.ASP", "it needs NVIDIA's own Apex"),
    ],
)
def test_what_runs_a_name_that_is_left(name, said):
    assert said in leftover(name)


def test_a_module_by_itself_says_nothing():
    assert leftover("apex.parallel") is None


def test_a_star_of_apex_is_noted_in_a_file_without_other_imports_of_apex():
    text = "import torch\nfrom {} import *\n\nprint(torch.ones(1))\n"
    done = migrate(text.format("apex.contrib.sparsity"))
    (note,) = done.notes
    assert (note.line, note.reason[:48]) == (2, "migrate does not know the names that `*` imports")
    assert done.after.count(f"# halfstep migrate: {note.reason}\nfrom apex.contrib") == 1
    assert migrate(done.after).after == done.after
    assert migrate(text.format(".apex.contrib.sparsity")).notes == ()
    by_name = migrate(f"{done.before}__import__('apex')\n")
    assert [each.line for each in by_name.notes] == [2, 5]
