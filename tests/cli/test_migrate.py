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
