"""The private names of torch that doctor rests on mean what it takes them to mean."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from halfstep.doctor import internals
from halfstep.loss_scale import LossScale
from halfstep.mechanisms.loss_scale.scaler import LossScaler


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_a_function_mode_is_taken_off_from_below_another_and_heard_until_then() -> None:
    below, above = Counting(), Counting()
    internals.push_function_mode(below)
    internals.push_function_mode(above)
    torch.ones(2).sum()
    assert internals.remove_function_mode(below) == 1
    assert internals.remove_function_mode(below) is None
    before = below.count
    torch.ones(2).sum()
    assert internals.remove_function_mode(above) == 0
    assert before > 0
    assert below.count == before
    assert above.count > before


def test_a_node_of_the_backward_has_the_number_that_the_forward_was_about_to_give() -> None:
    leaf = torch.ones(2, requires_grad=True)
    number = internals.next_sequence_number()
    product = leaf * 2
    seen = []
    assert internals.current_node() is None
    leaf.register_hook(lambda _: seen.append(internals.current_node() is not None))
    product.sum().backward()
    assert internals.node_number(product.grad_fn) == number
    assert seen == [True]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value * 2

    @staticmethod
    def backward(context, gradient):
        Doubled.running = internals.running_function("")
        raise ArithmeticError


def test_a_function_of_the_programs_own_is_known_while_it_runs_and_when_it_raises() -> None:
    result = Doubled.apply(torch.ones(2, requires_grad=True))
    with pytest.raises(ArithmeticError) as caught:
        result.sum().backward()
    assert Doubled.running == "Doubled"
    assert internals.raising_function(caught.tb) == "Doubled"


def test_the_node_of_a_function_of_the_programs_own_has_its_class() -> None:
    result = Doubled.apply(torch.ones(2, requires_grad=True))
    assert internals.forward_class(result.grad_fn) is Doubled
    assert internals.forward_class((result * 2).grad_fn) is None


def test_the_scale_and_settings_of_both_kinds_of_scaler_are_read_alike() -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    assert internals.loss_scale_of(theirs) is None
    theirs.scale(torch.ones(()))
    ours = LossScaler(LossScale(init=8.0, growth_interval=3), torch.device("cpu"))
    for scaler in (theirs, ours):
        assert float(internals.loss_scale_of(scaler)) == 8.0
    assert internals.settings_of(theirs) == internals.settings_of(ours)
    assert internals.settings_of(ours)["growth_interval"] == 3.0


def test_what_a_scaler_has_found_is_kept_by_optimizer_until_it_is_updated() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert internals.found_inf_of(scaler, optimizer) == []
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    assert [float(each) for each in internals.found_inf_of(scaler, optimizer)] == [1.0]
    scaler.update()
    assert internals.found_inf_of(scaler, optimizer) == []


def test_kinds_of_operators_and_modules_are_told_apart() -> None:
    aten = torch.ops.aten
    assert internals.changes_inputs(aten.add_.Tensor)
    assert not internals.changes_inputs(aten.add.Tensor)
    assert internals.is_cast(aten._to_copy.default)
    assert internals.is_loss(nn.MSELoss())
    assert not internals.is_loss(nn.BatchNorm1d(2))
    assert isinstance(nn.SyncBatchNorm(2), internals.norms_and_losses())
    model = nn.Sequential(nn.Linear(2, 2))
    assert not internals.is_compiled(model)
    model[0].compile(backend="eager")
    assert internals.is_compiled(model)


@pytest.mark.parametrize("iterable", [False, True])
def test_a_loader_without_workers_reads_its_batches_through_a_fetcher(
    iterable, monkeypatch
) -> None:
    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(4))

    fetched = []
    for kind in internals.fetchers():
        original = kind.fetch
        monkeypatch.setattr(
            kind, "fetch", lambda *args, original=original: fetched.append(1) or original(*args)
        )
    data = Numbers() if iterable else range(4)
    assert [each.tolist() for each in torch.utils.data.DataLoader(data, batch_size=2)] == [
        [0, 1],
        [2, 3],
    ]
    assert len(fetched) >= 2


def test_compiled_backward_passes_keep_their_buffers_until_it_is_put_back() -> None:
    from torch._functorch import config

    before = config.donated_buffer
    put_back = internals.keep_compiled_buffers()
    assert config.donated_buffer is False
    put_back()
    assert config.donated_buffer == before


def test_a_function_mode_is_put_back_below_another() -> None:
    below, above = Counting(), Counting()
    internals.push_function_mode(above)
    internals.push_function_mode(below, 1)
    assert internals.remove_function_mode(below) == 1
    assert internals.remove_function_mode(above) == 0


def test_an_autocast_for_an_absent_device_is_off() -> None:
    assert internals.is_on(torch.autocast("cpu", dtype=torch.bfloat16))
    assert not internals.is_on(torch.autocast("cpu", dtype=torch.bfloat16, enabled=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_on = internals.is_on(torch.autocast("cuda", dtype=torch.float16))
    assert is_on == torch.cuda.is_available()


def test_nodes_are_numbered_and_know_whether_they_make_a_scalar() -> None:
    weights = torch.ones(3, requires_grad=True)
    expected = internals.next_sequence_number()
    product = weights * 2
    total = product.sum()
    assert [internals.node_number(each.grad_fn) for each in (product, total)] == [
        expected,
        expected + 1,
    ]
    (below, _), *_ = total.grad_fn.next_functions
    assert internals.node_number(below) == expected
    assert internals.makes_scalar(total.grad_fn)
    assert not internals.makes_scalar(product.grad_fn)


def test_a_node_knows_the_shape_of_its_result_and_its_saved_arguments() -> None:
    inputs, weights = torch.randn(4, 3, requires_grad=True), torch.rand(4, 1)
    errors = inputs.pow(2).mean(1, keepdim=True)
    product = (errors * weights).grad_fn
    assert internals.shape_made(product) == (4, 1)
    assert internals.shape_made(errors.mean().grad_fn) == ()
    assert internals.saved_by(product, "other") is weights
    assert internals.saved_by(product, "nothing") is None
    loss = nn.functional.mse_loss(inputs, torch.zeros(4, 3)).grad_fn
    assert internals.saved_by(loss, "reduction") == 1


@pytest.mark.parametrize(
    "spectral", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm]
)
def test_the_vectors_of_spectral_norms_have_a_length_of_one(spectral) -> None:
    layer = spectral(nn.Linear(5, 4))
    found = [one for each in layer.modules() for one in internals.spectral_vectors(each)]
    assert [each.shape for each in found] == [(4,)]
    assert float(found[0].norm()) == pytest.approx(1.0)
    assert internals.spectral_vectors(nn.Linear(5, 4)) == []


def test_views_of_a_tensor_use_its_memory_and_copies_do_not() -> None:
    value = torch.zeros(3, 2)
    alone = internals.users_of_memory(value)
    copy = value.clone()
    assert internals.users_of_memory(value) == internals.users_of_memory(copy) == alone
    flat = value.view(-1)
    assert internals.users_of_memory(value) == alone + 1
    data = value.data
    assert internals.users_of_memory(value) == alone + 2
    del flat, data
    assert internals.users_of_memory(value) == alone
    assert internals.users_of_memory(value.view(-1)[:2]) == 0
