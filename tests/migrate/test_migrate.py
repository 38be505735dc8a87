"""What is rewritten, what is left with its reason, and that nothing else changes."""

import ast
import re
import textwrap

import pytest

from halfstep.errors import UserError
from halfstep.migrate import TARGETS

from .conftest import FIXTURES, migrate, source

NAMES = sorted(path.stem for path in FIXTURES.glob("*.py"))
PROGRAM = """\
import torch
from apex import amp

net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
{initialize}
for batch in [torch.ones(1, 2)]:
    loss = net(batch).sum()
    with amp.scale_loss(loss, opt) as scaled:
        scaled.backward()
    opt.step()
    opt.zero_grad()
"""


def program(initialize):
    return PROGRAM.format(initialize=initialize)


def without_notes(text):
    return [line for line in text.splitlines() if "# halfstep migrate: " not in line]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("to", TARGETS)
def test_what_comes_out_is_python_and_is_not_rewritten_again(name, to):
    once = migrate(source(name), to)
    ast.parse(once.after)
    again = migrate(once.after, to)
    assert again.after == once.after


@pytest.mark.parametrize("name", NAMES)
def test_comments_stay(name):
    def comments(text):
        return set(re.findall(r"#.*", text))

    of_the_import = {"# noinspection PyUnresolvedReferences"}
    assert comments(source(name)) - of_the_import <= comments(migrate(source(name)).after)


@pytest.mark.parametrize(
    ("arguments", "recipe"),
    [
        ("", '"o1"'),
        ('opt_level="O0"', '"o0"'),
        ('opt_level="O2", loss_scale="dynamic", verbosity=0', '"o2"'),
        ('opt_level="O2", enabled=False', '"o0"'),
        ('opt_level="O2", enabled=args.fp16', '"o2" if args.fp16 else "o0"'),
        ("opt_level=args.level", "args.level"),
        ('opt_level="O2", loss_scale=128.0', '{"base": "o2", "loss_scale": 128.0}'),
        ('opt_level="O2", loss_scale=1.0', '{"base": "o2", "loss_scale": None}'),
        ('opt_level="O3", keep_batchnorm_fp32=True', '{"base": "o3", "norms": "fp32"}'),
        ('opt_level="O2", keep_batchnorm_fp32="False"', '{"base": "o2", "norms": None}'),
        ('opt_level="O3", master_weights=True', '{"base": "o3", "master_weights": True}'),
        ('opt_level="O2", cast_model_type=torch.bfloat16', '{"base": "o2", "params": "bf16"}'),
        (
            'opt_level="O1", min_loss_scale=128',
            '{"base": "o1", "loss_scale": {"floor": 128.0}}',
        ),
        (
            'opt_level="O2", loss_scale=args.scale',
            'recipe_from_apex("O2", loss_scale=args.scale)',
        ),
    ],
)
def test_levels_and_overrides_become_a_recipe(arguments, recipe):
    given = f"net, opt = amp.initialize(net, opt{', ' if arguments else ''}{arguments})"
    done = migrate(program(given))
    assert done.notes == ()
    engine = re.search(r"engine = Engine\((.*?)\n(?=for)", done.after, re.DOTALL).group(1)
    assert recipe in " ".join(engine.split())


def test_an_override_that_a_recipe_does_not_have_is_left_with_the_reason():
    done = migrate(program('net, opt = amp.initialize(net, opt, "O1", cast_model_outputs=x)'))
    assert [note.line for note in done.notes] == [6]
    assert "# halfstep migrate: cast_model_outputs=x is left out" in done.after


def test_new_names_do_not_collide_and_bindings_are_kept():
    text = program("model, best = amp.initialize(net, opt)").replace("batch", "engine")
    after = migrate(text).after
    assert 'amp_engine = Engine(net, opt, recipe="o1")\nmodel, best = net, opt\n' in after


def test_the_engine_lives_where_every_user_of_amp_reaches_it():
    local = textwrap.indent(program("net, opt = amp.initialize(net, opt)"), "    ")
    assert "global" not in migrate(f"def main():\n{local}").after
    assert migrate(source("imagenet")).after.count("global engine") == 1
    method = migrate(source("accumulate")).after
    assert "self.engine = Engine(" in method
    assert "global" not in method


def test_import_styles_of_apex():
    for line, prefix in (
        ("import apex", "apex.amp"),
        ("import apex.amp as mixed", "mixed"),
        ("from apex import amp as half", "half"),
        ("from halfstep.apex import amp", "amp"),
        ("from halfstep import apex", "apex.amp"),
    ):
        text = program("net, opt = amp.initialize(net, opt)")
        text = text.replace("from apex import amp", line).replace(" amp.", f" {prefix}.")
        after = migrate(text).after
        assert line not in after
        assert "engine.step()" in after


def test_o2_trains_as_o1_on_torch_and_says_so_at_the_line():
    done = migrate(source("tacotron2"), "torch")
    (note,) = done.notes
    assert note.reason.startswith("O2 and O3 kept the parameters in fp16; torch.amp leaves them")
    lines = done.after.splitlines()
    at = next(i for i, line in enumerate(lines) if "GradScaler(" in line)
    assert lines[at - 1].strip() == f"# halfstep migrate: {note.reason}"


@pytest.mark.parametrize(
    ("scale", "reasons"),
    [
        ('"dynamic"', []),
        ("args.scale", ["loss_scale=args.scale is left out: a GradScaler starts from 65536"]),
        ("128", ["GradScaler has no static scale"]),
    ],
)
def test_a_loss_scale_at_a_level_known_at_run_time_is_noted_if_it_is_lost(scale, reasons):
    done = migrate(
        program(f"net, opt = amp.initialize(net, opt, opt_level=args.level, loss_scale={scale})"),
        "torch",
    )
    found = [note.reason for note in done.notes if not note.reason.startswith("O2 and O3")]
    assert len(found) == len(reasons)
    assert all(map(str.startswith, found, reasons))
    assert ("init_scale=128.0" in done.after) == (scale == "128")


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize(
    ("level", "noted"), [('"O2"', True), ("args.level", True), ('"O1"', False)]
)
def test_a_clip_of_fp16_gradients_under_o2_is_noted(level, noted, to):
    clip = "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    opt.step()"
    text = program(f"net, opt = amp.initialize(net, opt, opt_level={level})")
    text = text.replace("    opt.step()", clip)
    reasons = [note.reason for note in migrate(text, to).notes]
    assert noted == any("under O2, this clipped fp16 gradients" in reason for reason in reasons)


def test_amp_that_an_object_keeps_is_left_without_an_initialize():
    text = (
        "class Trainer:\n    def __init__(self):\n        from apex import amp\n"
        "        self.amp = amp\n    def backward(self, loss):\n"
        "        with self.amp.scale_loss(loss, self.opt) as scaled:\n"
        "            scaled.backward()\n"
    )
    (note,) = migrate(text).notes
    assert note.line == 6
    assert "no amp.initialize in this file" in note.reason


def test_tests_that_can_only_fail_go_with_amp():
    text = program(
        "if fast and amp is None:\n    raise ImportError\nnet, opt = amp.initialize(net, opt)"
    )
    assert "ImportError" not in migrate(text).after


@pytest.mark.parametrize("to", TARGETS)
def test_a_test_for_a_name_that_amp_has_is_answered_by_its_operator(to):
    text = program("{}net, opt = amp.initialize(net, opt)")
    without = migrate(text.format(""), to).after
    for test in ('"scale_loss" not in amp.__dict__', '"scale_loss" in amp.__dict__'):
        raised = f"if {test}:\n    raise RuntimeError('amp')\n"
        after = migrate(text.format(raised), to).after
        assert after.count("raise RuntimeError('amp')") == (" not in " not in test)
        assert " not in " not in test or after == without
    other = migrate(text.format("if old == amp.__dict__:\n    print(old)\n"), to)
    assert "apex.amp.__dict__ is internal state of amp" in other.notes[0].reason


def test_o3_has_no_torch_counterpart_and_stays_as_it_is():
    text = program('net, opt = amp.initialize(net, opt, opt_level="O3")')
    done = migrate(text, "torch")
    (note,) = done.notes
    assert note.line == 6
    assert "O3 trains fp16 parameters without fp32 copies" in note.reason
    assert without_notes(done.after) == text.splitlines()


@pytest.mark.parametrize("to", TARGETS)
def test_bert_runs_amps_own_state_by_hand_and_is_left(to):
    text = source("bert")
    done = migrate(text, to)
    reasons = {note.line: note.reason for note in done.notes}
    assert "with delay_overflow_check, the program skips steps" in reasons[78]
    assert "apex.amp._amp_state.loss_scalers is internal state of amp" in reasons[51]
    assert without_notes(done.after) == text.splitlines()


def test_a_file_that_does_not_initialize_amp_is_left_with_the_reason():
    text = (
        "from apex import amp\nwith amp.scale_loss(loss, opt) as scaled:\n    scaled.backward()\n"
    )
    done = migrate(text)
    assert [note.line for note in done.notes] == [2]
    assert done.after == text.replace(
        "with amp", f"# halfstep migrate: {done.notes[0].reason}\nwith amp"
    )
    assert "build the Engine in the file with amp.initialize" in done.notes[0].reason


@pytest.mark.parametrize("to", TARGETS)
def test_models_that_are_initialized_apart_are_left_with_the_reason_at_each_line(to):
    twice = "net, opt = amp.initialize(net, opt)\nnet2, opt2 = amp.initialize(net2, opt2)"
    done = migrate(program(twice), to)
    assert [note.line for note in done.notes] == [6, 7]
    assert all("amp.initialize([model1, model2]" in note.reason for note in done.notes)
    kept = [line for line in done.after.splitlines() if "# halfstep migrate: " not in line]
    assert kept == program(twice).splitlines()


@pytest.mark.parametrize("to", TARGETS)
def test_the_same_model_may_be_initialized_in_two_branches(to):
    branches = (
        "if fast:\n    net, opt = amp.initialize(net, opt)\n"
        "else:\n    net, opt = amp.initialize(net, opt, 'O0')"
    )
    after = migrate(program(branches), to).after
    assert "apex" not in after
    assert after.count("Engine(" if to == "halfstep" else "GradScaler(") == 2


LEFT = {
    "optimizer.step(closure)": ("opt.step()", "opt.step(closure)", "has arguments"),
    "functions of the scaled loss": ("scaled.backward()", "run(scaled)", "used for more than"),
    "fp16_utils": (
        "for batch",
        "from apex.fp16_utils import network_to_half\nnetwork_to_half(net)\nfor batch",
        "apex.fp16_utils.network_to_half has no counterpart; `python -m halfstep.apex` runs",
    ),
    "names of a star": (
        "for batch",
        "from apex.fp16_utils import *\nnetwork_to_half(net)\nfor batch",
        "apex.fp16_utils.network_to_half has no counterpart",
    ),
    "stars that cannot be seen through": (
        "for batch",
        "from apex.contrib.sparsity import *\nfor batch",
        "import them by name",
    ),
    "compiled code": (
        "for batch",
        "from apex.contrib.sparsity import ASP\nASP.prune_trained_model(net, opt)\nfor batch",
        "it needs NVIDIA's own Apex",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_cannot_be_translated_is_left_with_the_reason_at_the_line(case):
    old, new, reason = LEFT[case]
    text = program("net, opt = amp.initialize(net, opt)").replace(old, new)
    done = migrate(text)
    assert len(done.notes) == 1
    assert reason in done.notes[0].reason
    assert f"# halfstep migrate: {done.notes[0].reason}\n" in done.after


def test_star_imports_go_away_where_nothing_needs_them():
    text = program("net, opt = amp.initialize(net, opt)").replace(
        "from apex import amp\n", "from apex import *\nfrom apex.fp16_utils import *\n"
    )
    assert "apex" not in migrate(text).after
    done = migrate(text + "    print(to_python_float(loss))\n")
    assert done.notes == ()
    assert done.after.endswith("    print(float(loss))\n")
    assert "apex" not in done.after
    kept = migrate(text + "network_to_half(net)\n").after
    assert "from apex.fp16_utils import *\n" in kept
    assert "from apex import" not in kept


def test_blank_lines_before_a_comment_stay_when_its_statement_goes():
    clip = "torch.nn.utils.clip_grad_norm_(amp.master_params(opt), 1.0)"
    text = program("net, opt = amp.initialize(net, opt)").replace(
        "    opt.step()", f"    print(batch)\n\n    # clip\n    {clip}\n    opt.step()"
    )
    assert "    print(batch)\n\n    # clip\n    engine.step()" in migrate(text).after
    text = text.replace("    # clip\n", "")
    assert "    print(batch)\n\n    engine.step()" in migrate(text).after
    text = text.replace("1.0)\n", "1.0)\n\n")
    assert "    print(batch)\n\n    engine.step()" in migrate(text).after


def test_fused_optimizers_become_torchs_with_apexs_defaults():
    text = program("net, opt = amp.initialize(net, opt)").replace(
        "torch.optim.SGD(net.parameters(), 0.1)",
        "apex.optimizers.FusedAdam(net.parameters(), 0.1, adam_w_mode=False, set_grad_none=True)",
    )
    after = migrate(text.replace("from apex import amp", "import apex\nfrom apex import amp")).after
    assert "opt = torch.optim.Adam(net.parameters(), lr=0.1, weight_decay=0.0)" in after


def test_a_program_without_apex_is_not_touched():
    text = "import torch\n\n\ndef step(optimizer):\n    optimizer.step()\n"
    done = migrate(text)
    assert done.after == text
    assert done.diff("x.py") == ""


def test_the_diff_names_the_file():
    diff = migrate(source("dcgan")).diff("train.py")
    assert diff.startswith("--- a/train.py\n+++ b/train.py\n")
    assert "+engine = Engine(" in diff


def test_what_is_not_python_and_unknown_targets_are_refused():
    with pytest.raises(UserError, match=r"train\.py, line 2: not Python"):
        migrate("x = 1\nprint 'x'\n", name="train.py")
    with pytest.raises(UserError, match=r"--to is 'troch'; allowed: halfstep, torch; did you mean"):
        migrate("", "troch")


@pytest.mark.parametrize("to", TARGETS)
def test_a_function_that_autocast_casts_by_itself_needs_no_word(to):
    lines = (
        "try:\n    import apex\n    apex.amp.register_half_function(torch, 'einsum')\n"
        "except ImportError:\n    raise ImportError('Please install apex')\nnet, opt = amp"
    )
    text = program("net, opt = amp.initialize(net, opt)").replace("net, opt = amp", lines)
    done = migrate(text, to)
    assert done.notes == ()
    assert "apex" not in done.after
    other = migrate(text.replace("'einsum'", "'erfinv'"), to)
    assert "torch.erfinv = cast_inputs(torch.float16)(torch.erfinv)\n" in other.after


def test_apexs_wrapper_left_buffers_alone():
    text = program("net, opt = amp.initialize(net, opt)").replace(
        "for batch", "net = DDP(net, delay_allreduce=True)\nfor batch"
    )
    text = "from apex.parallel import DistributedDataParallel as DDP\n" + text
    written = "find_unused_parameters=True, broadcast_buffers=False)"
    for to in TARGETS:
        done = migrate(text + "print(isinstance(net, (DDP, list)))\n", to)
        assert f"net = torch.nn.parallel.DistributedDataParallel(net, {written}\n" in done.after
        assert "isinstance(net, (torch.nn.parallel.DistributedDataParallel, list))" in done.after
        assert "apex" not in done.after
        assert done.notes == ()


def test_an_optimizer_that_is_not_called_keeps_its_name_and_says_what_to_write():
    text = program("net, opt = amp.initialize(net, opt)") + "made_later = FusedSGD\n"
    done = migrate("from apex.optimizers import FusedSGD\n" + text)
    assert "from apex.optimizers import FusedSGD\n" in done.after
    (note,) = done.notes
    assert "is not called here" in note.reason
    assert note.reason.endswith("its counterpart is torch.optim.SGD")


def test_a_global_of_apex_goes_with_it():
    body = "    global amp, net\n    net = amp.initialize(net, opt)[0]\n"
    text = program("def start():\n    global amp, opt\n    amp.initialize(net, opt)\n\n\nstart()")
    assert "    global opt\n" in migrate(text).after
    assert "global amp" not in migrate(text.replace("amp, opt", "amp")).after
    assert "global amp, net" in migrate(program(f"def start():\n{body}")).after


def test_a_branch_that_the_program_switched_off_itself_stays():
    text = program("net, opt = amp.initialize(net, opt)") + "if False:\n    print(net)\n"
    assert migrate(text).after.endswith("if False:\n    print(net)\n")


def test_amp_that_another_file_imports_is_left_with_that_reason():
    text = "from .shared import *\n\namp.initialize(model, optimizer)\n"
    (note,) = migrate(text).notes
    assert (note.line, note.reason[:47]) == (3, "this file does not import amp from Apex itself,")
    other = text.replace("*", "amp")
    assert migrate(other).notes == ()
