"""The source of the inf or NaN in a tensor, from the calls that a loop makes."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from halfstep.doctor.signals.values import origins
from halfstep.doctor.signals.values.origins import Origins
from halfstep.doctor.signals.watched import Watched

NAN = float("nan")


@pytest.fixture(params=["host", "accelerator"])
def known(request, monkeypatch) -> Origins:
    """Origins that check each result at once, or only when asked, as on an accelerator."""
    if request.param == "accelerator":
        monkeypatch.setattr(origins, "_finite", lambda tensor: tensor.detach().sum())
    return Origins(Watched())


def heard(known: Origins, name: str, *given: torch.Tensor) -> torch.Tensor:
    function = getattr(torch.Tensor, name)
    result = function(*given)
    known.note(name, list(given), [result])
    return result


def maker(known: Origins, tensor: torch.Tensor) -> str:
    source = known.of(tensor)
    if source.makers:
        return source.makers[0].op
    return "data" if source.is_known else "unknown"


def test_the_first_call_with_finite_arguments_made_the_nan(known) -> None:
    negative = -torch.ones(3)
    logarithm = heard(known, "log", negative)
    doubled = heard(known, "mul", logarithm, torch.ones(3))
    assert maker(known, doubled) == "log"


def test_data_stays_data_through_calls_copies_and_views(known) -> None:
    data = torch.tensor([1.0, NAN, 1.0])
    first = heard(known, "clone", heard(known, "detach", data))
    scaled = heard(known, "sub", first, heard(known, "mean", first))
    assert maker(known, data) == maker(known, scaled) == "data"


def test_the_source_is_unknown_after_a_change_in_place_of_an_unknown_tensor(known) -> None:
    data = torch.tensor([1.0, NAN, 1.0])
    heard(known, "clamp_", data, torch.zeros(()))
    assert maker(known, data) == "unknown"


def test_a_change_of_a_view_makes_the_source_of_its_base_unknown(known) -> None:
    data = torch.ones(3)
    heard(known, "mul_", data, torch.ones(()))
    data[1:].log_().log_()
    assert maker(known, data) == "unknown"


def test_an_assignment_passes_the_source_of_its_value_on(known) -> None:
    batch, value = torch.ones(3), heard(known, "log", -torch.ones(2))
    batch[1:] = value
    known.assigned(batch, value)
    assert maker(known, batch) == "log"
    loaded = torch.tensor([NAN, 1.0, 1.0])
    number = torch.ones(2)
    loaded[1:] = number
    known.assigned(loaded, number)
    assert maker(known, loaded) == "data"


def test_an_assignment_to_half_precision_may_make_inf(known) -> None:
    batch, value = torch.ones(3).half(), torch.full((3,), 1e6)
    batch[:] = value
    known.assigned(batch, value)
    assert maker(known, batch) == "unknown"


@pytest.mark.parametrize(("name", "wide"), [("half", 1e6), ("float", 1e300)])
def test_a_cast_to_a_smaller_range_is_a_call_that_makes_inf(known, name, wide) -> None:
    assert maker(known, heard(known, name, torch.tensor([wide], dtype=torch.float64))) == "cast"


def test_long_chains_are_cut_if_results_are_checked_later(known, request) -> None:
    total = torch.ones(3)
    for _ in range(1000):
        total = heard(known, "add", total, torch.ones(3))
    total = heard(known, "log", heard(known, "neg", total))
    for _ in range(50):
        total = heard(known, "add", total, torch.ones(3))
    on_host = "host" in request.node.callspec.id
    assert maker(known, total) == ("log" if on_host else "unknown")


def test_where_sources_were_forgotten_no_tensor_is_called_data(known) -> None:
    kept = [heard(known, "log", -torch.ones(1)) for _ in range(origins.TENSORS + 1)]
    assert maker(known, kept[0]) == "unknown"
    assert maker(known, kept[-1]) == "log"


def test_inside_a_transform_no_source_is_known(known) -> None:
    torch.vmap(lambda each: heard(known, "log", each))(-torch.ones(3))
    assert maker(known, torch.tensor([NAN])) == "unknown"


def test_inside_a_transform_of_integers_no_source_is_known(known) -> None:
    torch.vmap(lambda each: heard(known, "log", each))(torch.arange(3))
    assert maker(known, torch.tensor([NAN])) == "unknown"


def test_a_traced_graph_gets_no_calls_of_doctor(known) -> None:
    traced = make_fx(lambda each: heard(known, "log", each))(-torch.ones(3))
    calls = [node for node in traced.graph.nodes if node.op == "call_function"]
    assert len(calls) == 1
    assert maker(known, torch.tensor([NAN])) == "unknown"


def test_nested_tensors_are_not_read() -> None:
    known = Origins(Watched())
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    known.note("mul", [nested], [nested * 2])


def test_after_calls_that_were_not_recorded_no_source_is_known(known) -> None:
    known.miss_calls()
    assert maker(known, torch.tensor([NAN])) == "unknown"


def test_a_result_of_the_tape_is_no_data() -> None:
    watched, result = Watched(), torch.tensor([NAN])
    watched.tape.close(watched.tape.open("call", torch.log, (), {}), [result], None)
    assert maker(Origins(watched), result) == "unknown"


def test_no_tensor_is_kept_alive(known) -> None:
    large = torch.ones(1000)
    mean = heard(known, "mean", large)
    bad = heard(known, "log", -mean)
    gone = weakref.ref(large), weakref.ref(bad)
    del large, bad
    assert [each() for each in gone] == [None, None]
    assert maker(known, mean) == "unknown"  # It is finite, so nothing made a NaN in it.


@pytest.mark.parametrize(
    ("name", "plain"),
    [("__rdiv__", "div"), ("__idiv__", "div"), ("__rpow__", "pow"), ("log_", "log"), ("mm", "mm")],
)
def test_variants_of_a_function_have_one_name(name, plain) -> None:
    assert origins._plain(name) == plain
