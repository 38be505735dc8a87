"""Programs of several files: rewritten together or left together, and trained before and after."""

import runpy
import sys

import pytest
import torch

from halfstep import apex
from halfstep.apex import amp
from halfstep.migrate import TARGETS, Project, migrate_project

from .conftest import FIXTURES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
PROJECTS = {"checkpoints": "main.py", "package": "run.py"}
MAIN = """\
import torch
from apex import amp
from {} import step

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
net, opt = amp.initialize(net, opt)
for batch in [torch.ones(1, 2)]:
    step(net, opt, batch)
"""
STEP = """\
from apex import amp


def step(net, opt, batch):
    loss = net(batch).sum()
    with amp.scale_loss(loss, opt) as scaled:
        scaled.backward()
    opt.step()
    opt.zero_grad()
"""


def texts(name):
    folder = FIXTURES / "projects" / name
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.py")}


def migrated(files, to="halfstep", names=None):
    project = Project(files)
    return {each.name: each for each in migrate_project(project, to, names or files)}


def trained(folder, script, monkeypatch):
    """Run a script whose folder is first on the search path, and forget what it imported."""
    torch.manual_seed(0)
    monkeypatch.syspath_prepend(folder)
    known = set(sys.modules)
    names = runpy.run_path(str(folder / script), run_name="__main__")
    if hasattr(amp._amp_state, "handle"):
        amp._amp_state.handle._deactivate()
    for name in set(sys.modules) - known:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            holder = sys.modules.pop(name)
            if hasattr(getattr(holder, "engine", None), "close"):
                holder.engine.close()
    return names


@pytest.mark.parametrize("name", PROJECTS)
def test_a_program_of_several_files_trains_alike_before_and_after(name, tmp_path, monkeypatch):
    results = {}
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for to in ("apex", *TARGETS):
        folder = tmp_path / to
        files = texts(name)
        if to != "apex":
            done = migrated(files, to)
            assert not any(each.notes for each in done.values())
            files |= {path: each.after for path, each in done.items()}
            assert not any("apex" in text for text in files.values() if "Apex's" not in text)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        apex.install()
        try:
            results[to] = trained(folder, PROJECTS[name], monkeypatch)
        finally:
            apex.uninstall()
    for to in TARGETS:
        assert results[to]["STATE"].keys() == results["apex"]["STATE"].keys()
        before, after = (torch.tensor(results[each]["LOSSES"]) for each in ("apex", to))
        torch.testing.assert_close(before, after, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("to", TARGETS)
def test_what_comes_out_is_not_rewritten_again(to):
    once = {name: each.after for name, each in migrated(texts("checkpoints"), to).items()}
    assert all(each.after == each.before for each in migrated(once, to).values())


def test_the_engine_is_a_variable_of_a_new_file_that_its_users_import():
    done = migrated(texts("package"))
    assert "engine = None\n" in done["mixed_precision.py"].after
    assert done["mixed_precision.py"].before is None
    assert "import mixed_precision\n" in done["lib/precision.py"].after
    assert "    mixed_precision.engine.backward(loss)\n" in done["lib/precision.py"].after
    assert "mixed_precision" not in done["lib/__init__.py"].after
    relative = {name: text for name, text in texts("package").items() if name.startswith("lib")}
    assert "from . import mixed_precision\n" in migrated(relative)["lib/precision.py"].after


def test_one_file_of_a_program_is_left_and_the_others_are_named():
    files = {"main.py": MAIN.format("steps"), "steps.py": STEP}
    done = migrated(files, names=["main.py"])
    (note,) = done["main.py"].notes
    assert note.reason.startswith("steps.py of this program also uses amp; migrate all together")
    assert "halfstep migrate main.py steps.py" in note.reason
    assert "scale_loss" in done["main.py"].after or "amp.initialize" in done["main.py"].after


def test_amp_may_be_imported_from_another_file_of_the_program():
    files = {
        "main.py": MAIN.format("steps").replace("from apex import amp", "from steps import amp"),
        "steps.py": STEP,
    }
    done = migrated(files)
    assert not any(each.notes for each in done.values())
    assert "from steps import amp" not in done["main.py"].after


def test_programs_share_a_file_that_becomes_the_same_in_both():
    first, second = MAIN.format("steps"), MAIN.format("steps").replace("[torch.ones(1, 2)]", "data")
    done = migrated({"one.py": first, "two.py": second, "steps.py": STEP})
    assert all("apex" not in each.after.replace("Apex's", "") for each in done.values())
    odd = second.replace("opt = torch", "opts = torch").replace("(net, opt)", "(net, opts, **k)")
    done = migrated({"one.py": first, "two.py": odd, "steps.py": STEP})
    reasons = [note.reason for each in done.values() for note in each.notes]
    assert any("steps.py is also part of the program" in reason for reason in reasons)
    assert all("scale_loss" in done[name].after for name in ("steps.py",))


def test_inference_that_imports_the_training_code_does_not_keep_it_from_being_rewritten():
    test = "from apex import amp\nfrom steps import step\nmodel = amp.initialize(model)\n"
    done = migrated({"main.py": MAIN.format("steps"), "test.py": test, "steps.py": STEP})
    assert "mixed_precision.engine.step()" in done["steps.py"].after
    assert "amp.initialize(model)" in done["test.py"].after


def test_names_of_one_file_do_not_refer_to_another():
    files = {
        "main.py": MAIN.format("steps"),
        "steps.py": STEP.replace("loss = net", "loss = helper(1) * net").replace(
            "def step", "def helper(x):\n    return x\n\n\ndef step"
        ),
        "other.py": "from steps import step\n\n\ndef helper(optimizer):\n    optimizer.step()\n",
    }
    done = migrated(files)
    assert "other.py" not in done or done["other.py"].after == files["other.py"]
    assert not any(each.notes for each in done.values())
