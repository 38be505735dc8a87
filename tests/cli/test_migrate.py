from pathlib import Path

import pytest

PROGRAM = """\
import torch
from apex import amp

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
net, opt = amp.initialize(net, opt, opt_level="O2")
loss = net(torch.ones(1, 2)).sum()
with amp.scale_loss(loss, opt) as scaled:
    scaled.backward()
opt.step()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


def test_the_difference_is_printed_and_the_file_left(halfstep, script):
    code, out, err = halfstep("migrate", script)
    assert (code, err) == (0, "")
    assert out.startswith("--- a/train.py\n+++ b/train.py\n")
    assert '+engine = Engine(net, opt, recipe="o2")\n' in out
    assert script.read_text() == PROGRAM


def test_the_file_is_rewritten_and_keeps_its_mode(halfstep, script):
    code, out, err = halfstep("migrate", script, "--write")
    assert (code, out) == (0, "")
    assert err == f"rewrote {script}; notes to read: 0\n"
    assert "engine.step()" in script.read_text()
    assert script.stat().st_mode & 0o777 == 0o755


def test_a_program_that_got_only_comments_is_not_called_rewritten(halfstep, tmp_path):
    script = tmp_path / "unclear.py"
    script.write_text(
        "from apex import amp\n"
        "model, optimizer = build()\n"
        "model, optimizer = amp.initialize(model, optimizer, **settings)\n"
        "for batch in loader:\n"
        "    loss = model(batch)\n"
        "    with amp.scale_loss(loss, optimizer) as scaled:\n"
        "        scaled.backward()\n"
        "    optimizer.step()\n"
    )
    code, _, err = halfstep("migrate", script, "--write")
    assert code == 0
    assert err.endswith(f"{script}: not rewritten; the comments added say why\n")
    assert "# halfstep migrate:" in script.read_text()


def test_what_is_left_is_listed_with_its_line(halfstep, script):
    code, out, err = halfstep("migrate", script, "--to", "torch")
    assert code == 0
    assert err.startswith(f"{script}:6: O2 and O3 kept the parameters in fp16")
    assert "+# halfstep migrate: O2 and O3 kept the parameters in fp16" in out


def test_a_program_without_amp_is_said_to_have_none(halfstep, script):
    script.write_text("print(1)\n")
    said = f"{script}: does not use apex.amp; nothing to rewrite\n"
    assert halfstep("migrate", script) == (0, "", said)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"print 'x'\n", "line 1: not Python"), (b"\xff", "not UTF-8"), (None, "No such file")],
)
def test_files_that_cannot_be_read_are_one_line(halfstep, script, content, said):
    if content is None:
        script = Path("missing.py")
    else:
        script.write_bytes(content)
    code, out, err = halfstep("migrate", script)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_file_that_is_not_there_is_one_line(halfstep, tmp_path):
    code, _, error = halfstep("migrate", str(tmp_path / "nothing.py"))
    assert code == 2
    assert "cannot be read: No such file or directory; write the path of a Python program" in error


FILES = {
    "main.py": """\
import torch
from apex import amp
from steps import step

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
net, opt = amp.initialize(net, opt, opt_level="O1")
step(net, opt)
""",
    "steps.py": """\
import torch
from apex import amp


def step(net, opt):
    loss = net(torch.ones(1, 2)).sum()
    with amp.scale_loss(loss, opt) as scaled:
        scaled.backward()
    opt.step()
    opt.zero_grad()
""",
    "data.py": "print(1)\n",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_folder_is_rewritten_whole_and_its_diff_names_each_file(halfstep, folder):
    code, out, err = halfstep("migrate", folder)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("+++")] == [
        *("+++ b/main.py", "+++ b/steps.py", "+++ b/mixed_precision.py")
    ]
    assert "--- /dev/null\n" in out
    assert {path.name: path.read_text() for path in folder.iterdir()} == FILES
    code, out, err = halfstep("migrate", folder, "--write")
    assert (code, out) == (0, "")
    assert sorted(err.splitlines()) == [
        f"rewrote {folder / 'main.py'}; notes to read: 0",
        f"rewrote {folder / 'steps.py'}; notes to read: 0",
        f"wrote {folder / 'mixed_precision.py'}; notes to read: 0",
    ]
    assert "mixed_precision.engine.step()" in (folder / "steps.py").read_text()


def test_several_files_are_rewritten_as_their_folder_is(halfstep, folder):
    whole = halfstep("migrate", folder)[1]
    assert halfstep("migrate", folder / "main.py", folder / "steps.py")[1] == whole


def test_one_file_of_a_program_is_left_and_its_siblings_are_named(halfstep, folder):
    code, _, err = halfstep("migrate", folder / "main.py", "--write")
    assert code == 0
    assert f"{folder / 'steps.py'} of this program also uses amp; migrate all together" in err
    assert "not rewritten" in err
    assert (folder / "steps.py").read_text() == FILES["steps.py"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: [path.unlink() for path in folder.iterdir()], "contains no Python file"),
        (
            lambda folder: (folder / "steps.py").write_text("import apex\ndef f("),
            "steps.py, line 2",
        ),
        (lambda folder: (folder / "mixed_precision.py").write_text("x = 1\n"), "exists, but the"),
        (lambda folder: (folder / "data.py").write_bytes(b"\xff"), "data.py: not UTF-8"),
    ],
)
def test_a_folder_that_cannot_be_migrated_is_one_line_and_stays_as_it_is(
    halfstep, folder, change, said
):
    change(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, out, err = halfstep("migrate", folder, "--write")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_file_of_a_folder_that_is_not_python_and_without_amp_is_ignored(halfstep, folder):
    (folder / "data.py").write_text("print 'x'\n")
    code, out, err = halfstep("migrate", folder)
    assert code == 0
    assert "+++ b/steps.py" in out
    assert "data.py, line 1: not Python" in err
    assert err.endswith("the file does not use amp, and is ignored\n")
    assert halfstep("migrate", folder / "main.py", folder / "data.py")[0] == 2


def test_names_of_torch_amp_are_written_on_request(halfstep, folder):
    (folder / "data.py").write_text("from torch.cuda.amp import autocast\nwith autocast(): pass\n")
    code, out, err = halfstep("migrate", folder, "--cuda-amp")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line[0] == "+"] == [
        *("+++ b/data.py", "+from torch.amp import autocast", '+with autocast("cuda"): pass')
    ]
    said = "does not use torch.cuda.amp; nothing to rewrite\n"
    assert halfstep("migrate", folder / "main.py", "--cuda-amp")[2].endswith(said)
