"""Assertions for a project's own tests: does a model still train in less than fp32?"""

from __future__ import annotations

import copy
import io
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from halfstep.doctor import watch
from halfstep.doctor.report.show import print_diagnosis
from halfstep.doctor.verdict import CERTAIN
from halfstep.engine import Engine
from halfstep.engine.misuse import EngineWarning
from halfstep.kernels.accelerators import forked_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.engine import StepResult
    from halfstep.recipe import Recipe


def assert_survives(
    model: nn.Module,
    batches: Iterable[Any],
    recipe: str | Recipe | Mapping[str, Any] = "fp16",
    *,
    loss: Callable[[nn.Module, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    tolerance: float = 0.05,
) -> None:
    """Assert that training under a recipe goes as in fp32.

    A copy of the model takes a step for each batch in fp32, and another copy under the recipe.
    The model itself, and torch's random numbers, stay as they are. Where the device lacks a format,
    the recipe is rehearsed, so that the test needs no GPU.

    Args:
        model: The model, on its device.
        batches: Batches of a few steps; by default pairs of inputs and class labels.
        recipe: A recipe, as for `halfstep.Engine`.
        loss: Returns the scalar loss of a model and a batch; by default cross-entropy.
        optimizer: Returns the optimizer of parameters; by default SGD with a rate of 0.01.
        tolerance: The largest difference of the mean losses, as a share of that in fp32.

    Raises:
        AssertionError: If a loss is not finite, if a step is skipped although the loss scale had
            been found, if the mean losses differ by more than `tolerance`, or if doctor is certain
            of a cause. The message contains doctor's diagnosis.
        ValueError: If there is no batch.
    """
    examples = list(batches)
    if not examples:
        raise ValueError("batches is empty; pass at least one batch")
    compute = loss or _cross_entropy
    build = optimizer or (lambda params: SGD(params, lr=0.01))
    wide, _, _ = _trained(model, examples, "fp32", compute, build)
    losses, results, diagnosis = _trained(model, examples, recipe, compute, build)
    faults = []
    bad = [number for number, value in enumerate(losses, 1) if not math.isfinite(value)]
    if bad:
        faults.append(f"the loss is not finite in steps {', '.join(map(str, bad))}")
    stepped = [result.stepped for result in results]
    if True not in stepped:
        faults.append("no step was taken: in all of them, gradients were not finite")
    elif False in stepped[stepped.index(True) :]:
        late = stepped.index(False, stepped.index(True)) + 1
        faults.append(f"step {late} was skipped, although the loss scale had been found")
    mean, expected = sum(losses) / len(losses), sum(wide) / len(wide)
    if not bad and abs(mean - expected) > tolerance * abs(expected):
        faults.append(
            f"the mean loss is {mean:.4g}, but {expected:.4g} in fp32; they may differ by "
            f"{tolerance:.0%} of it"
        )
    certain = [verdict for verdict in diagnosis.verdicts if verdict.finding.confidence == CERTAIN]
    if faults or certain:
        text = io.StringIO()
        print_diagnosis(diagnosis, text)
        what = "; ".join(faults) or "doctor is certain of a fault"
        raise AssertionError(f"training does not survive {recipe}: {what}\n{text.getvalue()}")


def _trained(
    model: nn.Module,
    batches: list[Any],
    recipe: str | Recipe | Mapping[str, Any],
    loss: Callable[[nn.Module, Any], torch.Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
) -> tuple[list[float], list[StepResult], Any]:
    """Train a copy; return the losses, the results of the steps, and doctor's diagnosis."""
    trained = copy.deepcopy(model).train()
    own = optimizer(trained.parameters())
    device = next(trained.parameters()).device
    losses, results = [], []
    with (
        warnings.catch_warnings(),
        forked_rng(device),
        watch(trained, own, quiet=True) as session,
        Engine(trained, own, recipe=recipe) as engine,
    ):
        warnings.simplefilter("ignore", EngineWarning)  # what it says will be raised
        torch.manual_seed(0)
        for batch in batches:
            with engine.autocast():
                value = loss(engine.model, batch)
            engine.backward(value)
            results.append(engine.step())
            losses.append(float(value.detach()))
    return losses, results, session.diagnose()


def _cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)
