"""Two processes against one process on the joined batch."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import warm
from halfstep import Engine
from halfstep.apex.parallel import (
    DistributedDataParallel,
    SyncBatchNorm,
    convert_syncbn_model,
    multiproc,
)
from halfstep.apex.parallel.LARC import LARC
from halfstep.optim import larc

from . import two_processes
from .two_processes import RECIPE, SPLIT, batch, gradients, net


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes found."""
    directory = tmp_path_factory.mktemp("processes")
    start_method = warm.CONTEXT.get_start_method()
    torch.multiprocessing.start_processes(
        two_processes.main, (str(directory),), 2, start_method=start_method
    )
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


def alone(model):
    images, targets = batch()
    (model(images) - targets).square().mean().backward()
    return gradients(model)


def all_close(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance or {"rtol": 1e-5, "atol": 1e-6})


@pytest.mark.parametrize("name", [name for name in two_processes.DDP if name != "summed"])
def test_gradients_are_those_of_the_joined_batch(ranks, name):
    for found in ranks:
        all_close(found["data_parallel"][name], alone(net()))


def test_without_averaging_gradients_are_summed(ranks):
    expected = [2 * grad for grad in alone(net())]
    all_close(ranks[0]["data_parallel"]["summed"], expected)


def test_retained_buffers_hold_the_reduced_gradients(ranks):
    flat = torch.cat([grad.reshape(-1) for grad in alone(net())]).sort().values
    torch.testing.assert_close(ranks[1]["data_parallel"]["buffers"], flat)


def test_disabled_gradients_stay_local_and_enabled_ones_are_reduced(ranks):
    first, second = (found["data_parallel"] for found in ranks)
    assert not torch.allclose(first["disabled"][0], second["disabled"][0])
    all_close(first["enabled"], alone(net()))


def test_half_gradients_overflow_in_the_sum_unless_fp32_or_divided_before(ranks):
    found = ranks[0]["half_gradients"]
    assert found["plain"].isinf().all()
    for name in ("fp32", "predivided"):
        assert found[name].dtype == torch.float16
        assert torch.equal(found[name], torch.full((2,), 40000.0, dtype=torch.float16))


def test_reducer_shares_weights_and_averages_gradients(ranks):
    for found in ranks:
        all_close(found["reducer"]["weights"], list(net().parameters()))
        all_close(found["reducer"]["by model"], alone(net()))
        all_close(found["reducer"]["by gradients"], alone(net()))


SHAPES = {"2d": (4,), "4d": (2, 1, 2), "last": (2, 1, 2)}


@pytest.mark.parametrize("name", SHAPES)
def test_batch_norm_over_uneven_batches_is_that_of_the_joined_batch(ranks, name):
    images, _ = batch()
    given = images.reshape(-1, *SHAPES[name]).clone().requires_grad_()
    plain = nn.BatchNorm1d(4) if name == "2d" else nn.BatchNorm2d(2)
    with torch.no_grad():
        plain.weight.copy_(torch.arange(1.0, plain.num_features + 1))

    def run(tensor):
        return plain(tensor.movedim(-1, 1)).movedim(1, -1) if name == "last" else plain(tensor)

    out = run(given)
    out.pow(3).sum().backward()
    parts = [found["batch_norm"][name] for found in ranks]
    close = {"rtol": 5e-4, "atol": 1e-4}
    torch.testing.assert_close(torch.cat([p["out"] for p in parts]), out.detach(), **close)
    torch.testing.assert_close(torch.cat([p["input grad"] for p in parts]), given.grad, **close)
    for key, expected in (("weight grad", plain.weight.grad), ("bias grad", plain.bias.grad)):
        torch.testing.assert_close(sum(p[key] for p in parts), expected, **close)
    for part in parts:
        torch.testing.assert_close(part["mean"], plain.running_mean)
        torch.testing.assert_close(part["var"], plain.running_var)
    plain.eval()
    torch.testing.assert_close(torch.cat([p["eval"] for p in parts]), run(given).detach(), **close)


def test_half_inputs_fused_relu_cumulative_statistics_and_groups(ranks):
    images, _ = batch()
    parts = [found["batch_norm"] for found in ranks]
    normalized = nn.BatchNorm1d(4)(images).detach()
    half = torch.cat([part["half"] for part in parts]).float()
    torch.testing.assert_close(half, normalized, rtol=1e-2, atol=1e-2)
    fused = torch.cat([part["fused"] for part in parts])
    torch.testing.assert_close(fused, (normalized + images).relu(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts[0]["cumulative mean"], images.mean(0))
    own = nn.BatchNorm1d(4)(images[:SPLIT]).detach()
    torch.testing.assert_close(parts[0]["alone"], own, rtol=1e-4, atol=1e-5)
    assert parts[0]["refused"] == ("group_size is 3; allowed: 0, or a divisor of the 2 processes")


def test_a_converted_model_trains_in_step_under_wrapper_and_engine(ranks):
    first, second = (found["trained_together"] for found in ranks)
    assert all(
        torch.equal(first["weights"][key], second["weights"][key]) for key in first["weights"]
    )
    model = net(0, norm=True)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe=RECIPE)
    images, targets = batch()
    losses = []
    for _ in range(3):
        with engine.autocast():
            loss = (model(images) - targets).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    engine.close()
    mean = (first["losses"] + second["losses"]) / 2
    torch.testing.assert_close(mean, torch.stack(losses), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shared_param": True}, "shared_param is no longer supported as an option"),
        ({"delay_allreduce": True, "num_allreduce_streams": 2}, "num_allreduce_streams is 2"),
        ({"delay_allreduce": True, "allreduce_trigger_params": []}, "only valid if delay"),
    ],
)
def test_arguments_that_exclude_each_other_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        DistributedDataParallel(net(), **given)


def test_conversion_keeps_parameters_buffers_mode_and_other_layers():
    model = nn.Sequential(nn.BatchNorm2d(3, eps=1e-3, momentum=None), nn.InstanceNorm2d(3)).eval()
    weight, mean = model[0].weight, model[0].running_mean
    converted = convert_syncbn_model(model, channel_last=True)
    assert converted is model
    layer = model[0]
    assert isinstance(layer, SyncBatchNorm)
    assert layer.weight is weight
    assert layer.running_mean is mean
    assert (layer.eps, layer.momentum, layer.channel_last, layer.training) == (
        1e-3,
        None,
        True,
        False,
    )
    assert isinstance(model[1], nn.InstanceNorm2d)
    bare = convert_syncbn_model(nn.BatchNorm1d(2, affine=False, track_running_stats=False))
    assert bare.weight is None
    assert bare.running_mean is None


def test_without_processes_it_is_plain_batch_norm():
    images = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(SyncBatchNorm(3)(images), nn.BatchNorm1d(3)(images))
    with pytest.raises(ValueError, match="expected more than 1 value per channel"):
        SyncBatchNorm(3)(images[:1])


def test_larc_is_where_programs_import_it_from():
    assert LARC is larc.LARC


def test_multiproc_runs_one_process_per_rank_and_reports_a_failure(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    script = Path("script.py")
    script.write_text("import sys; print(*sys.argv[1:]); sys.exit(int(sys.argv[-1]) * 3)")
    assert multiproc.main(["script.py", "--world-size", "2"]) == 3
    assert capfd.readouterr().out == "--world-size 2 --rank 0\n"
    assert Path("GPU_1.log").read_text() == "--world-size 2 --rank 1\n"
    assert sys.executable
