"""Calls of Apex's wrappers, optimizers and layers become calls of torch, or have a note."""

import inspect

import pytest
import torch

from halfstep.apex import normalization, optimizers, parallel
from halfstep.migrate import TARGETS
from halfstep.optim.lamb import LAMB
from halfstep.optim.novograd import NovoGrad

from .conftest import migrate

IMPORTS = """\
from apex.normalization import *
from apex.optimizers import *
from apex.parallel import *
from apex.parallel import DistributedDataParallel as DDP
"""
FIRST = {optimizers: "[torch.nn.Parameter(torch.ones(2))]", normalization: "8", parallel: "8"}
DEFAULTS = [
    (module, name)
    for module in (optimizers, normalization, parallel)
    for name in module.__all__
    if name.startswith("Fused") or name.endswith("Norm")
    if name != "FusedMixedPrecisionLamb"
]


def called(line, to="halfstep"):
    """Return the migrated line and the reasons of its notes."""
    done = migrate(f"{IMPORTS}{line}\n", to)
    return done.after.splitlines()[-1], [note.reason for note in done.notes]


@pytest.mark.parametrize(("module", "name"), DEFAULTS, ids=[name for _, name in DEFAULTS])
def test_apexs_defaults_by_position_are_understood(module, name):
    _, *parameters = inspect.signature(getattr(module, name)).parameters.values()
    given = [
        "0.1" if each.name == "lr" else repr(each.default)
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    line, reasons = called(f"{name}({', '.join([FIRST[module], *given])})")
    assert reasons == []
    made = eval(line, {"torch": torch, "LAMB": LAMB, "NovoGrad": NovoGrad})
    if module is optimizers:
        assert made.param_groups[0]["lr"] == 0.1
    else:
        assert made.eps == 1e-5


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("SyncBatchNorm(8, fuse_relu=True)", "torch.nn.SyncBatchNorm does not have fuse_relu"),
        ("SyncBatchNorm(8, channel_last=last)", "torch.nn.SyncBatchNorm does not have channel_"),
        ("SyncBatchNorm(8, 1e-5, 0.1, True, True, None, True)", "does not have channel_last"),
        ("convert_syncbn_model(net, channel_last=True)", "does not have channel_last"),
        ("convert_syncbn_model(net, None, True)", "does not have channel_last"),
        ("convert_syncbn_model(net, **more)", "arguments of convert_syncbn_model are not known"),
        ("FusedAdam(ps, lr=1e-3, adam_w_mode=args.adamw)", "value of adam_w_mode=args.adamw is"),
        ("FusedAdam(ps, 1e-3, True, (0.9, 0.99), 1e-8, args.adamw)", "write torch.optim.AdamW if"),
        ("DDP(net, **more)", "arguments of DDP are not known here"),
    ],
)
@pytest.mark.parametrize("to", TARGETS)
def test_a_call_without_a_certain_counterpart_stays_with_a_note(line, lacks, to):
    kept, (reason,) = called(line, to)
    assert kept == line
    assert lacks in reason


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("SyncBatchNorm(8, fuse_relu=False)", "torch.nn.SyncBatchNorm(8)"),
        (
            "convert_syncbn_model(net, group, False)",
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm(net, process_group=group)",
        ),
        (
            "FusedAdam(ps, 0.1, True, (0.9, 0.99), 1e-8, False)",
            "torch.optim.Adam(ps, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)",
        ),
        ("FusedSGD(ps, 0.1, 0.9)", "torch.optim.SGD(ps, lr=0.1, momentum=0.9)"),
        (
            "FusedAdam(ps, lr=0.1, amsgrad=True, capturable=True)",
            "torch.optim.AdamW(ps, lr=0.1, amsgrad=True, capturable=True, weight_decay=0.0)",
        ),
    ],
)
def test_arguments_that_change_nothing_are_left_out(line, written):
    assert called(line) == (written, [])


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("net, 10000000, True", "net, find_unused_parameters=True, broadcast_buffers=False"),
        ("net, 10000000, late", "net, find_unused_parameters=late, broadcast_buffers=False"),
        ("net, 10000000, False", "net, broadcast_buffers=False"),
        ("module=net, delay_allreduce=False", "net, broadcast_buffers=False"),
        ("net, [rank], rank", "net, [rank], rank"),
    ],
)
def test_arguments_of_the_wrapper_are_found_by_name_and_by_position(arguments, written):
    line, reasons = called(f"DDP({arguments})")
    assert line == f"torch.nn.parallel.DistributedDataParallel({written})"
    assert reasons == []


def test_another_reduction_of_the_wrapper_is_noted():
    assert called("DDP(net, allreduce_always_fp32=False)")[1] == []
    for given in ("gradient_average=False", "1, False, None, None, False, True"):
        (reason,) = called(f"DDP(net, {given})")[1]
        assert "is left out; with torch's wrapper, use a communication hook" in reason


@pytest.mark.parametrize(
    ("module", "name", "argument"),
    [
        ("parallel", "SyncBatchNorm", "fuse_relu"),
        ("normalization", "FusedLayerNorm", "memory_efficient"),
    ],
)
def test_a_layer_under_another_name_stays_if_torch_lacks_an_argument(module, name, argument):
    text = f"import apex\nNorm = apex.{module}.{name}\nnorm = Norm(8, {argument}=True)\n"
    done = migrate(text)
    assert f"Norm = apex.{module}.{name}\n" in done.after
    assert "is not called here" in done.notes[0].reason


def test_a_layer_under_another_name_is_torchs():
    text = "import apex\nNorm = apex.parallel.SyncBatchNorm\n"
    done = migrate(text)
    assert "Norm = torch.nn.SyncBatchNorm\n" in done.after
    assert "apex" not in done.after
    assert done.notes == ()


def test_a_call_with_arguments_of_torchs_wrapper_keeps_them():
    text = (
        "try:\n    from apex.parallel import DistributedDataParallel as DDP\n"
        "except ImportError:\n    from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(model, device_ids=[0], find_unused_parameters=True)\n"
    )
    wrapped = "DistributedDataParallel(model, device_ids=[0], find_unused_parameters=True)\n"
    assert migrate(text).after.endswith(f"model = torch.nn.parallel.{wrapped}")
