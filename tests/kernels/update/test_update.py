"""Steps in one pass: the kernels give the bits of the reference, and the reference is Adam."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from halfstep.kernels.update import Device, Rule, Tensors, reference

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
SIZES = (1, 7, 8, 128, 1032, 2500)


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


def assert_same_bits(kernels, rule: Rule, correction, moments, gradients=torch.bfloat16) -> None:
    """Hold a module of kernels to the reference."""
    for found_inf in (None, torch.tensor(0.0), torch.tensor(1.0)):
        start = parameters(rule, correction, moments, gradients)
        expected, found = copied(start), copied(start)
        reference.update(expected, rule, numbers(rule, found_inf))
        kernels.update(found, rule, numbers(rule, found_inf))
        for name, before, one, other in zip(Tensors._fields, start, expected, found, strict=True):
            for index, (old, wanted, given_) in enumerate(zip(before, one, other, strict=True)):
                same = torch.equal(wanted.view(torch.uint8), given_.view(torch.uint8))
                assert same, (rule, name, index, correction, moments)
                if found_inf is not None and found_inf:
                    assert torch.equal(wanted, old)


TRITON = """
import os, sys, torch
os.environ["TRITON_INTERPRET"] = "1"
from halfstep.kernels.update import gpu
from tests.kernels.update.test_update import CORRECTIONS, RULES, assert_same_bits
cases = [
    (rule, correction, moments, gradients)
    for rule in RULES.values() for correction in CORRECTIONS
    for moments in (torch.float32, torch.bfloat16, torch.int8)
    for gradients in (torch.bfloat16, torch.float32)
]
for number, case in enumerate(cases[:: int(sys.argv[1])]):
    assert_same_bits(gpu, *case)
print("same bits", number + 1)
"""


def triton_cases(every: int) -> str:
    pytest.importorskip("triton")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", TRITON, str(every)],
        capture_output=True, text=True, check=False, timeout=500,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_triton_kernel_gives_the_bits_of_the_reference():
    assert triton_cases(11) == "same bits 11\n"


@pytest.mark.slow
def test_the_triton_kernel_gives_the_bits_of_the_reference_in_every_case():
    assert triton_cases(1) == "same bits 120\n"
