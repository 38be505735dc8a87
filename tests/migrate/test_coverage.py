"""Each call that reaches a scaled loss is under autocast, or its line has a note."""

import re

import pytest

from halfstep import apex
from halfstep.migrate import TARGETS
from halfstep.migrate.program.program import Program
from halfstep.migrate.program.source import Source
from halfstep.migrate.verification.coverage import UNCOVERED, uncovered

from .conftest import FIXTURES, migrate

PATHS = sorted(FIXTURES.rglob("*.py"))
SAYS = UNCOVERED.partition("{}")[2].partition(";")[0]
IN_A_TEST = """\
import torch
from apex import amp

LOSSES = []
torch.manual_seed(0)
model = torch.nn.Linear(6, 6); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for step in range(6):
    images = torch.randn(2, 6); optimizer.zero_grad()
    if (outputs := model(images)).dim() == 2:
        loss = outputs.pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()
        optimizer.step(); LOSSES.append(loss.item())
"""


def calls(text, models=("model",)):
    """Return the source of each call that is reported for a rewritten program."""
    source = Source(text)
    return [source.code(each.func) for each in uncovered(source, set(models), "engine")]


UNDER = "with engine.autocast():\n    "
REPORTED = {
    "y = model(x)\nengine.backward(y)": ["model"],
    f"{UNDER}y = model(x)\nengine.backward(y.sum())": ["y.sum"],
    "engine.backward(criterion(model(x), z))": ["criterion", "model"],
    f"y = model(x)\n{UNDER}loss = y.pow(2).sum()\nengine.backward(loss)": ["model"],
    f"if c: y = model(x)\nelse:\n  {UNDER}  y = model(x)\nengine.backward(y)": ["model"],
    "for x in data: y = model(x); engine.backward(y)": ["model"],
    f"y = 0\nfor x in data:\n  {UNDER}  h = f(y)\n  engine.backward(h)\n  y = model(x)": ["model"],
    "if (y := model(x)).any(): engine.backward(y)": ["model"],
    "f = lambda v: model(v)\nengine.backward(f(x))": ["f"],
    "ys = [model(x) for x in data]\nengine.backward(sum(ys))": ["model"],
    "ys = []\nfor x in data: ys.append(model(x))\nengine.backward(sum(ys))": ["model"],
    "d = {}\nd['a'] = model(x)\nengine.backward(d['a'])": ["model"],
    "def f(v): return 1, model(v)\na, b = f(x)\nengine.backward(b)": ["model"],
    "def f(v):\n  global y\n  y = model(v)\nf(x)\nengine.backward(y)": ["model"],
    "def f(v): v.append(model(x))\nys = []\nf(ys)\nengine.backward(ys[0])": ["model"],
    "def train(net):\n  y = net(x)\n  engine.backward(y)\ntrain(model)": ["net"],
    "class A:\n  def f(self): engine.backward(self.y)\n  def g(self): self.y = model(x)": ["model"],
    "class A:\n  def __call__(self, y): engine.backward(y)\na = A()\na(model(x))": ["model"],
    "class Net(nn.Module): pass\nnet = Net()\nengine.backward(net(x))": ["net"],
    "try: y = model(x)\nexcept E: y = 0\nengine.backward(y)": ["model"],
    "match c:\n  case 1: y = model(x)\n  case _: y = 0\nengine.backward(y)": ["model"],
    "from lib import compute\nfor x in data: engine.backward(compute(model, x))": ["compute"],
    "from lib import step\nengine.backward(step(x))": ["step"],
    "with engine.autocast(enabled=False): y = model(x)\nengine.backward(y)": ["model"],
    "y = model(x)\nscaled = engine.scale(y)": ["model"],
}
NOT_REPORTED = [
    f"{UNDER}y = model(x)\nengine.backward(y)",
    f"x = augment(next(batches)).cuda()\n{UNDER}y = model(x)\nengine.backward(y / 2)",
    f"def f(v): return model(v)\n{UNDER}y = f(x)\nengine.backward(y)",
    "@g\n@torch.autocast('cuda')\ndef f(v): return model(v)\nengine.backward(f(x))",
    "@torch.autocast('cuda')\n@g\ndef f():\n  while c: engine.backward(model(x))",
    f"while c:\n  x = load(sorted(d, key=lambda v: g(v)))\n  {UNDER}  engine.backward(model(x))",
    f"{UNDER}y = model(x)\nengine.backward(y)\ny = model(x)\nprint(y)",
    f"{UNDER}y = model(x)\nn = model(x).shape[0] + model(x).sum().item()\nengine.backward(y * n)",
    f"model = wrap(model)\nmodel = DDP(model.cuda())\n{UNDER}y = model(x)\nengine.backward(y)",
    f"def f():\n  y = model(x)\n  if c: return y\n  {UNDER}  y = model(x)\n  engine.backward(y)",
    f"h = model(x)\nengine = Engine(model, o)\n{UNDER}y = model(h)\nengine.backward(y)",
    "def f(loss): engine.backward(loss)",
]


@pytest.mark.parametrize("text", REPORTED)
def test_calls_outside_of_autocast_that_reach_a_loss_are_reported(text):
    assert calls(text) == REPORTED[text]


@pytest.mark.parametrize("text", NOT_REPORTED)
def test_other_calls_are_not_reported(text):
    assert calls(text) == []


def test_data_that_is_returned_beside_a_model_is_no_model():
    text = "def f(): return model, data\nwhile c:\n  m, d = f()\n  x = load(d)\n"
    text += f"  {UNDER}  y = m(x)\n  engine.backward(y)"
    assert calls(text) == []
    assert calls(text.replace("load(d)", "load(m)")) == ["load"]


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_fixture_has_such_a_call(path, to):
    assert not any(SAYS in note.reason for note in migrate(path.read_text(), to).notes)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_block_of_autocast_that_is_lost_is_reported(path):
    text = path.read_text()
    done = migrate(text).after.split("\n")
    heads = [place for place, line in enumerate(done) if re.match(r"\s+with .*autocast\(", line)]
    heads = [place for place in heads if "enabled=False" not in done[place]]
    models = Program.read(Source(text)).models
    for place in heads:
        changed = [*done]
        engine = re.search(r"with (.*)\.autocast", done[place])[1]
        changed[place] = re.sub(r"with .*:", "if True:", done[place])
        lost = uncovered(Source("\n".join(changed)), models, engine)
        assert bool(lost) == (
            not re.search("bank|64", done[place + 1])
        )  # these do not reach the loss


@pytest.mark.parametrize("to", TARGETS)
def test_the_line_of_such_a_call_has_a_note(to):
    done = migrate(IN_A_TEST, to)
    (note,) = (each for each in done.notes if SAYS in each.reason)
    assert note.line == 1 + IN_A_TEST.split("\n").index(
        "    if (outputs := model(images)).dim() == 2:"
    )
    assert "the result of `model` reaches" in note.reason
    assert f"    # halfstep migrate: {note.reason}\n    if (outputs :=" in done.after
    assert migrate(done.after, to).after == done.after


def test_such_a_call_runs_in_fp32(run):
    apex.install()
    try:
        before, after = run(IN_A_TEST), run(migrate(IN_A_TEST).after)
    finally:
        apex.uninstall()
    assert [str(each["outputs"].dtype) for each in (before, after)] == [
        *("torch.float16", "torch.float32")
    ]


def test_a_level_without_mixed_precision_needs_no_autocast():
    assert migrate(IN_A_TEST.replace('"O1"', '"O0"')).notes == ()


@pytest.mark.parametrize("to", TARGETS)
def test_a_mean_in_the_argument_of_scale_loss_is_computed_under_autocast(to):
    text = """\
from apex import amp
model, optimizer = amp.initialize(model, optimizer)
for images in batches:
    loss = model(images); optimizer.zero_grad()
    with amp.scale_loss(loss.mean(), optimizer) as scaled: scaled.backward()
    optimizer.step()
"""
    done = migrate(text, to)
    assert done.notes == ()
    assert re.search(r"with .*autocast.*:\n        (\w+) = loss.mean\(\)\n.*\(\1\)", done.after)
