"""Names of `torch.cuda.amp` become those of `torch.amp`, and compute the same."""

import warnings

import pytest
import torch

from halfstep.migrate import modernized

CHANGED = {
    "from torch.cuda.amp import autocast, GradScaler\nautocast(False)\nGradScaler(4.0)\n": (
        "from torch.amp import autocast, GradScaler\n"
        'autocast("cuda", enabled=False)\nGradScaler("cuda", init_scale=4.0)\n'
    ),
    "from torch.cuda import amp\nwith amp.autocast(True, torch.bfloat16): pass\n": (
        'from torch import amp\nwith amp.autocast("cuda", enabled=True, dtype=torch.bfloat16): pass\n'  # noqa: E501
    ),
    "import torch\ntorch.cpu.amp.autocast(dtype=x)\n": (
        'import torch\ntorch.amp.autocast("cpu", dtype=x)\n'
    ),
    "import torch.cuda.amp as amp\n@amp.custom_fwd\ndef f(): pass\n": (
        'import torch.amp as amp\n@amp.custom_fwd(device_type="cuda")\ndef f(): pass\n'
    ),
    "from torch.cuda.amp import custom_fwd\n@custom_fwd(cast_inputs=t)\ndef f(): pass\n": (
        "from torch.amp import custom_fwd\n"
        '@custom_fwd(device_type="cuda", cast_inputs=t)\ndef f(): pass\n'
    ),
    "import torch\ns = torch.cuda.amp.GradScaler(growth_interval=torch.cuda.amp.GradScaler().x)\n": (  # noqa: E501
        "import torch\n"
        's = torch.amp.GradScaler("cuda", growth_interval=torch.amp.GradScaler("cuda").x)\n'
    ),
    "import torch\ndef f(s: torch.cuda.amp.GradScaler): isinstance(s, torch.cuda.amp.GradScaler)\n": (  # noqa: E501
        "import torch\ndef f(s: torch.amp.GradScaler): isinstance(s, torch.amp.GradScaler)\n"
    ),
}
KEPT = [
    "from torch.amp import autocast\nautocast('cuda')\n",
    "from apex import amp\namp.initialize(m)\n",
    "from torch.cuda.amp import common\n",
    "def f(autocast): autocast()\n",
]
PROGRAM = """\
import torch
from torch.cpu.amp import autocast, GradScaler
torch.manual_seed(0)
net = torch.nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), 0.1)
scaler = GradScaler(256.0)
LOSSES = []
for step in range(5):
    with autocast(True, torch.bfloat16):
        loss = net(torch.randn(4, 8)).square().mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    LOSSES.append(loss.item())
"""


@pytest.mark.parametrize("text", CHANGED)
def test_names_and_device_types(text):
    done = modernized(text)
    assert done.after == CHANGED[text]
    assert done.notes == ()
    assert modernized(done.after).after == done.after


@pytest.mark.parametrize("text", KEPT)
def test_other_names_stay(text):
    lines = modernized(text).after.splitlines()
    assert [line for line in lines if not line.startswith("# halfstep")] == text.splitlines()


def test_a_class_that_is_passed_on_gets_its_device_type_and_a_note():
    done = modernized("from torch.cuda.amp import autocast\nmake(autocast)\n")
    assert 'make(functools.partial(autocast, "cuda"))\n' in done.after
    assert "import functools\n" in done.after
    (note,) = done.notes
    assert note.line == 2


def test_the_program_trains_the_same_without_a_warning():
    before, after = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(PROGRAM, before)
        warnings.simplefilter("error", FutureWarning)
        exec(modernized(PROGRAM).after, after)
    assert before["LOSSES"] == after["LOSSES"]
    assert torch.equal(before["net"].weight, after["net"].weight)
