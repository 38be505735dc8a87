"""Steps in one pass: the kernels give the bits of the reference, and the reference is Adam."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import warm
from halfstep.kernels.update import COUNTERS, GROUP, Device, Rule, Tensors, reference, update
from kernels.sm90 import needs

ADAM = Rule("adam", (0.9, 0.999, 1e-8, 0.0))
SGD = Rule("sgd", (0.9, 0.0, 0.0))
RULES = {
    "adam": ADAM,
    "adam-l2": Rule("adam", (0.8, 0.99, 1e-6, 0.1), maximize=True),
    "sgd": SGD,
    "nesterov": Rule("sgd", (0.9, 0.1, 0.01), nesterov=True),
    "sgd-plain": Rule("sgd", (0.0, 0.0, 0.0)),
}
CORRECTIONS = (None, torch.bfloat16, torch.int16, torch.int8)
SIZES = (1, 7, 136, 1028)


def parameters(rule: Rule, correction, moments, gradients=torch.bfloat16, seed=0) -> Tensors:
    """Parameters of several sizes, whose states are those after some steps."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int, scale: float) -> torch.Tensor:
        return torch.randn(size, generator=generator) * scale

    lists: list[list[torch.Tensor]] = [[] for _ in Tensors._fields]
    for size in SIZES:
        value = normal(size, 1.0)
        if correction is None:
            weight = value.bfloat16()
        else:
            weight, missing = reference.split(value, correction)
            lists[2].append(missing)
        lists[0].append(weight)
        lists[1].append(normal(size, 0.1).to(gradients))
        both = [normal(size, 0.01), normal(size, 0.01).square()]
        wanted = 2 if rule.kind == "adam" else int(rule.settings[0] > 0)
        for place, moment in enumerate(both[:wanted]):
            if moments is torch.int8:
                bits = torch.full((size,), 1 << 15)
                codes, scales = reference.quantised(moment, bits, signed=not place)
                lists[3 + place].append(codes)
                lists[5 + place].append(scales)
            else:
                lists[3 + place].append(moment.to(moments))
    return Tensors(*lists)


def numbers(rule: Rule, found_inf=None, draws: int = 2**33 + 5) -> Device:
    row = [0.01, 1.7, 0.999] if rule.kind == "adam" else [0.01, 0.0, 0.0]
    return Device(
        torch.tensor([row] * len(SIZES)), torch.arange(len(SIZES)) + 3, torch.tensor(draws),
        found_inf, 2**40 + 2**31 + 17,
    )  # fmt: skip


def copied(tensors: Tensors) -> Tensors:
    return Tensors(*([each.clone() for each in part] for part in tensors))


def assert_same_bits(kernels, rule: Rule, correction, moments, gradients, flag) -> None:
    """Hold a module of kernels to the reference; `flag` is that of a non-finite gradient."""
    start = parameters(rule, correction, moments, gradients)
    expected, found = copied(start), copied(start)
    device = numbers(rule, None if flag is None else torch.tensor(flag))
    lost = torch.zeros(2, COUNTERS, dtype=torch.int64)
    reference.update(expected, rule, device._replace(lost=lost[0]))
    kernels.update(found, rule, device._replace(lost=lost[1]))
    assert lost[0].sum() == lost[1].sum()
    assert not flag or not lost.any()
    for name, before, one, other in zip(Tensors._fields, start, expected, found, strict=True):
        for index, (old, wanted, given) in enumerate(zip(before, one, other, strict=True)):
            same = torch.equal(wanted.view(torch.uint8), given.view(torch.uint8))
            assert same, (rule, name, index, correction, moments)
            assert not flag or torch.equal(wanted, old)


TRITON = """
import sys, torch
from halfstep.kernels.update import gpu
from kernels.update.test_update import CORRECTIONS, RULES, assert_same_bits
cases = [
    (rule, correction, moments, gradients)
    for rule in RULES.values() for correction in CORRECTIONS
    for moments in (torch.float32, torch.bfloat16, torch.int8)
    for gradients in (torch.bfloat16, torch.float32)
]
for number, case in enumerate(cases[:: int(sys.argv[1])]):
    assert_same_bits(gpu, *case, (None, 0.0, 1.0)[number % 3])
print("same bits", number + 1)
"""


def triton_cases(every: int) -> str:
    pytest.importorskip("triton")
    ended = warm.run(warm.interpreted, TRITON, str(every))
    assert ended.code == 0, ended.err
    return ended.out


def test_the_triton_kernel_gives_the_bits_of_the_reference():
    assert triton_cases(11) == "same bits 11\n"


@pytest.mark.slow
def test_the_triton_kernel_gives_the_bits_of_the_reference_in_every_case():
    assert triton_cases(1) == "same bits 120\n"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
def test_updates_that_round_to_nothing_are_counted(rule, correction):
    """Against the same step in fp32, and what is stored before and after it."""
    start = parameters(rule, correction, torch.float32)
    values = [
        reference.exact(weight, start.corrections[index] if correction else None)
        for index, weight in enumerate(start.weights)
    ]
    rate = 1e-4 if correction is None else 1e-6
    device = numbers(rule)._replace(lost=torch.zeros(COUNTERS, dtype=torch.int64))
    device.numbers[:, 0], device.numbers[:, 2] = rate, 1.0
    exact = copied(start)._replace(weights=[each.clone() for each in values], corrections=[])
    update(exact, rule, device)
    assert not device.lost.any(), "fp32 weights are not rounded"
    update(start, rule, device)
    wanted = moved = 0
    for index, (before, after) in enumerate(zip(values, exact.weights, strict=True)):
        missing = start.corrections[index] if correction else None
        stored = reference.exact(start.weights[index], missing)
        wanted += int(((before != after) & (before == stored)).sum())
        moved += int((before != after).sum())
    assert int(device.lost.sum()) == wanted
    assert 0 < wanted < moved or correction is torch.int16
    assert wanted == 0 or correction is not torch.int16, "fp32 keeps every bit"


KINDS = {"table": "*i64", "owners": "*i32", "places": "*i64", "draws": "*i64"}
KINDS |= dict.fromkeys(("numbers", "found_inf"), "*fp32") | {"lost": "*i64"}
KINDS |= dict.fromkeys(("seed_low", "seed_high"), "i32")
KINDS |= dict.fromkeys(("decay1", "gain1", "decay2", "gain2", "eps", "penalty"), "fp32")


@pytest.mark.parametrize(
    ("moments", "correction", "missing", "loads", "stores"),
    [
        # Of 8 elements of a thread: weight and gradient, the moments, and what weights lack.
        ("fp32 fp32", None, 0, {16: 2 + 4}, {16: 1 + 4}),
        ("bf16 bf16", None, 0, {16: 2 + 2}, {16: 1 + 2}),
        ("int8 uint8", None, 0, {16: 2, 8: 2}, {16: 1, 8: 2}),
        ("int8 uint8", "int8", 8, {16: 2, 8: 3}, {16: 1, 8: 3}),
        ("fp32 fp32", "bf16", 0, {16: 3 + 4}, {16: 2 + 4}),
    ],
)
def test_the_kernel_reads_and_writes_once_by_16_bytes(moments, correction, missing, loads, stores):
    pytest.importorskip("triton")
    from triton import language as tl

    from halfstep.kernels.update import gpu

    kinds = {"bf16": tl.bfloat16, "fp32": tl.float32, "int8": tl.int8, "uint8": tl.uint8}
    first, second = (kinds[name] for name in moments.split())
    flags = {
        "adam": True, "has_first": True, "nesterov": False, "maximize": False, "penalised": False,
        "weight_in": tl.bfloat16, "gradient_in": tl.bfloat16, "first_in": first,
        "second_in": second, "correction_in": kinds[correction] if correction else None,
        "missing": missing, "checked": True, "aligned": True, "rows": gpu.BLOCK // GROUP,
        "group": GROUP, "columns": 10, "counters": COUNTERS,
    }  # fmt: skip
    found = needs(gpu._update_kernel, KINDS, flags, enable_fp_fusion=False)
    assert found.spilled == 0
    assert found.registers <= 96
    wide = {
        way: {size: n for size, n in found.moved[way].items() if size >= 8} for way in found.moved
    }
    wide["ld"][8] = wide["ld"].get(8, 0) - found.addresses  # the table, draws and places
    assert {size: n for size, n in wide["ld"].items() if n} == loads
    assert wide["st"] == stores


@pytest.mark.parametrize("signed", [True, False])
def test_moments_in_8_bits_are_right_on_average(signed):
    """And within a code of the exact one; a second moment above 0 does not become 0."""
    generator = torch.Generator().manual_seed(0)
    moment = torch.randn(512, generator=generator) * torch.logspace(-4, 0, 512)
    moment = moment if signed else moment.square()
    moment[7] = 0.0
    draws = []
    for draw in range(1500):
        device = numbers(ADAM, draws=draw)
        bits = reference.random_bits(512, device, 0, 1)
        codes, scales = reference.quantised(moment, bits, signed=signed)
        draws.append(reference.values_of(codes, scales))
    values = torch.stack(draws).double()
    width = values.amax(0) - values.amin(0)
    error = (values.mean(0) - moment).abs()
    tiny = scales.repeat_interleave(GROUP) * 1e-5
    assert (error <= 5 * width / 2 / 1500**0.5 + width * 2.0**-16 + tiny).all()
    assert values[:, 7].abs().max() == 0
    if not signed:
        assert (values[:, moment > 0] > 0).all()


def test_one_step_of_adam_in_fp32_is_torchs():
    start = parameters(ADAM, torch.int16, torch.float32, torch.float32)
    exact = [reference.exact(*pair) for pair in zip(start.weights, start.corrections, strict=True)]
    device = numbers(ADAM)._replace(
        numbers=torch.tensor(
            [[0.01 / (1 - 0.9**3), (1 - 0.999**3) ** -0.5, 1 - 0.01 * 0.1]] * len(SIZES)
        )
    )
    expected = [nn.Parameter(value) for value in exact]
    optimizer = torch.optim.AdamW(expected, lr=0.01, weight_decay=0.1)
    for param, *state, grad in zip(
        expected, start.first, start.second, start.gradients, strict=True
    ):
        param.grad = grad
        names = ("exp_avg", "exp_avg_sq")
        optimizer.state[param] = dict(zip(names, map(torch.clone, state), strict=True))
        optimizer.state[param]["step"] = torch.tensor(2.0)
    update(start, ADAM, device)
    optimizer.step()
    for param, weight, missing in zip(expected, start.weights, start.corrections, strict=True):
        torch.testing.assert_close(
            reference.exact(weight, missing), param.detach(), rtol=2e-6, atol=1e-8
        )
