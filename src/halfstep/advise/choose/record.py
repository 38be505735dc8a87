"""Records a few steps of fp32 training as the reference for every format."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from halfstep.advise.choose.exponents import Exponents
from halfstep.advise.choose.sites import CallKey, Listener, Site
from halfstep.advise.random_numbers import RandomNumbers, drawn_from
from halfstep.engine import Engine
from halfstep.mechanisms.exceptions.interception import is_in_place
from halfstep.train.store.random_state import capture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from halfstep.advise.subject import Subject

STEPS = 8


@dataclass(slots=True)
class Call:
    """One call of an operator in fp32, with its inputs, results and gradients.

    Attributes:
        key: Identifies the call.
        func: The operator.
        args: Its positional arguments, with detached tensors.
        kwargs: Its keyword arguments, with detached tensors.
        random_state: State of the CPU's random number generator before the call.
        outputs: Its floating-point results, detached.
        gradients: Gradients of the results, by index in `outputs`; a result without a gradient is
            missing.
    """

    key: CallKey
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    random_state: torch.Tensor
    outputs: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moment:
    """The state before a step of fp32 training, and the gradient of the step.

    Attributes:
        weights: State dict of the model before the step.
        optimizer_state: State dict of the optimizer before the step.
        batch: The batch of the step.
        random_state: State of all random number generators before the step.
        gradient: The gradient, by parameter name.
    """

    weights: Mapping[str, torch.Tensor]
    optimizer_state: Mapping[str, Any]
    batch: Any
    random_state: dict[str, Any]
    gradient: Mapping[str, torch.Tensor]

    @property
    def steepness(self) -> float:
        """The 2-norm of the gradient."""
        return math.sqrt(_energy(self.gradient))


@dataclass(frozen=True, slots=True)
class Record:
    """The record of the first steps of fp32 training.

    Attributes:
        calls: The calls of the last step, in the order of the forward pass.
        forward: Exponents of the results of each site, over all steps.
        backward: Exponents of the gradients of these results, over all steps.
        of_parameters: Exponents of the gradients of parameters, over all steps.
        gradient: The gradient of the last step, by parameter name.
        mean: The mean gradient over all steps, by parameter name, in fp32.
        spread: Standard deviation of each element of the gradient between batches, by parameter
            name, in fp32.
        noise_ratio: 2-norm of `spread` divided by that of `gradient`, at least `LEAST_NOISE`.
        losses: The loss of each step.
        weights: State dict of the model before the last step.
        optimizer_state: State dict of the optimizer before the last step.
        batch: The batch of the last step.
        random_state: State of all random number generators before the last step.
        lines: The line of the model's code that calls each site, as "file:line".
        steepest: The step with the largest gradient.
        random_states: State of all random number generators before each step.
        steps: The number of steps, and so of forward and backward passes.
    """

    calls: Sequence[Call]
    forward: Mapping[Site, Exponents]
    backward: Mapping[Site, Exponents]
    of_parameters: Exponents
    gradient: Mapping[str, torch.Tensor]
    mean: Mapping[str, torch.Tensor]
    spread: Mapping[str, torch.Tensor]
    noise_ratio: float
    losses: Sequence[float]
    weights: Mapping[str, torch.Tensor]
    optimizer_state: Mapping[str, Any]
    batch: Any
    random_state: dict[str, Any]
    lines: Mapping[Site, str]
    steepest: Moment
    random_states: Sequence[dict[str, Any]]
    steps: int

    def at(self, moment: Moment) -> Self:
        """Return the record with another step in place of the last one.

        The variance of the gradient between batches, by which squared errors are divided, stays the
        same.
        """
        return replace(
            self,
            weights=moment.weights,
            optimizer_state=moment.optimizer_state,
            batch=moment.batch,
            random_state=moment.random_state,
            gradient=moment.gradient,
            noise_ratio=self.noise_ratio * math.sqrt(_energy(self.gradient)) / moment.steepness,
        )

    def calls_of(self, site: Site) -> list[Call]:
        """Return the calls of a site in the last step."""
        return [call for call in self.calls if call.key.site == site]


LEAST_NOISE = 0.05
"""Minimum of `noise_ratio`: equal batches have no noise, but the batches of real training do."""


def record(
    subject: Subject, *, seed: int = 0, before: Callable[[int], None] = lambda _: None
) -> Record:
    """Train a copy of the model in fp32 for eight steps, and record calls and gradients.

    Args:
        subject: The subject; it is not modified.
        seed: The seed of random operators such as dropout.
        before: Called before each step, with its number from 0.

    Raises:
        ValueError: If a loss or a gradient is not finite in fp32.
    """
    with RandomNumbers(seed).drawn():
        return _record(subject, before)


def _record(subject: Subject, before: Callable[[int], None]) -> Record:
    model = subject.copied()
    optimizer = subject.optimizer(model)
    forward: dict[Site, Exponents] = {}
    backward: dict[Site, Exponents] = {}
    of_parameters = Exponents.none()
    noise = _Noise()
    losses, random_states = [], []
    steepest: Moment | None = None
    with Engine(
        model, optimizer, recipe="fp32", clip_norm=subject.clip_norm, nonfinite="apply"
    ) as engine:
        for step in range(STEPS):
            before(step)
            batch = subject.batches[step % len(subject.batches)]
            weights = copy.deepcopy(model.state_dict())
            optimizer_state = copy.deepcopy(optimizer.state_dict())
            random_state = capture()
            random_states.append(random_state)
            calls: list[Call] = []
            with engine.autocast(), Listener(model, _Taking(calls).take) as listener:
                loss = subject.loss_of(model, batch)
            engine.backward(loss)
            losses.append(float(loss.detach()))
            gradient = _gradient(model)
            _refuse_nonfinite(step, losses[-1], gradient)
            _count(calls, forward, backward)
            for each in gradient.values():
                of_parameters += Exponents.of(each)
            noise.add(gradient)
            moment = Moment(weights, optimizer_state, batch, random_state, gradient)
            if steepest is None or moment.steepness >= steepest.steepness:
                steepest = moment
            if step == STEPS - 1:  # an update would change the weights in the recorded calls
                engine.zero_grad()
            else:
                engine.step()
    assert steepest is not None  # STEPS is at least 1
    spread = noise.spread()
    return Record(
        calls,
        forward,
        backward,
        of_parameters,
        gradient,
        noise.means,
        spread,
        _noise_ratio(spread, gradient),
        losses,
        weights,
        optimizer_state,
        batch,
        random_state,
        listener.lines,
        steepest,
        random_states,
        STEPS,
    )


def replayed(subject: Subject, recorded: Record) -> Iterator[Moment]:
    """Train all recorded steps except the last again, and yield each step before its update.

    To save memory, a record contains the weights and gradients of only two steps.
    """
    model = subject.copied()
    optimizer = subject.optimizer(model)
    with Engine(
        model, optimizer, recipe="fp32", clip_norm=subject.clip_norm, nonfinite="apply"
    ) as engine:
        for step, random_state in enumerate(recorded.random_states[:-1]):
            batch = subject.batches[step % len(subject.batches)]
            weights = copy.deepcopy(model.state_dict())
            optimizer_state = copy.deepcopy(optimizer.state_dict())
            with drawn_from(random_state), engine.autocast():
                loss = subject.loss_of(model, batch)
                engine.backward(loss)
            yield Moment(weights, optimizer_state, batch, random_state, _gradient(model))
            engine.step()


def _noise_ratio(spread: Mapping[str, torch.Tensor], gradient: Mapping[str, torch.Tensor]) -> float:
    noise, squared = _energy(spread), _energy(gradient)
    return max(LEAST_NOISE, math.sqrt(noise / squared)) if squared > 0 else 1.0


def _energy(values: Mapping[str, torch.Tensor]) -> float:
    return sum(float(each.double().square().sum()) for each in values.values())


def _gradient(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: param.grad.detach().clone()
        for name, param in model.named_parameters()
        if param.grad is not None
    }


def _count(
    calls: Sequence[Call], forward: dict[Site, Exponents], backward: dict[Site, Exponents]
) -> None:
    """Add the results and gradients of a step's calls to the histograms of their sites."""
    for call in calls:
        site = call.key.site
        for values, histograms in (
            (call.outputs, forward),
            (call.gradients.values(), backward),
        ):
            for tensor in values:
                histograms[site] = histograms.get(site, Exponents.none()) + Exponents.of(tensor)


def _refuse_nonfinite(step: int, loss: float, gradient: Mapping[str, torch.Tensor]) -> None:
    wrong = [name for name, grad in gradient.items() if not is_finite(grad)]
    if wrong or not math.isfinite(loss):
        what = f"the gradient of {wrong[0]!r}" if wrong else "the loss"
        lower = "lower the learning rate (--lr, or optimizer.lr of a config), or " if step else ""
        raise ValueError(
            f"{what} is not finite in step {step + 1}, even in fp32; advise needs a model "
            f"that trains in fp32: {lower}find the cause with halfstep doctor"
        )


class _Taking:
    """Records the calls of one forward pass."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    def take(
        self,
        key: CallKey,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run an operator, and record its inputs, results and gradients."""
        copied = is_in_place(func, kwargs)
        its_args, its_kwargs = _detached((args, dict(kwargs)), copied=copied)
        call = Call(key, func, its_args, its_kwargs, torch.get_rng_state())
        result = func(*args, **kwargs)
        for place, leaf in enumerate(floating(result)):
            # Copied, because the next layer may overwrite the result in place.
            call.outputs.append(leaf.detach().clone())
            if leaf.requires_grad:
                leaf.register_hook(_keeps(call.gradients, place))
        if call.outputs:
            self._calls.append(call)
        return result


def _keeps(gradients: dict[int, torch.Tensor], place: int) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        gradients[place] = gradient.detach()

    return keep


def floating(tree: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors among nested values, in order."""
    return [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has no inf and no NaN, much faster than `isfinite().all()`.

    The minimum and the maximum of values with a NaN are both NaN.
    """
    return not tensor.numel() or all(bool(each.isfinite()) for each in tensor.aminmax())


def _detached(tree: Any, *, copied: bool) -> Any:
    """Detach the tensors among nested values from their graph; each keeps its `requires_grad`."""

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        alone = leaf.detach().clone() if copied else leaf.detach()
        if isinstance(leaf, nn.Parameter):
            return nn.Parameter(alone, requires_grad=leaf.requires_grad)
        return alone.requires_grad_(leaf.requires_grad)

    return tree_map(cut, tree)


class _Noise:
    """Mean and variance of gradients between batches, computed in one pass.

    Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products"
    (Technometrics 4, 1962).
    """

    def __init__(self) -> None:
        self.means: dict[str, torch.Tensor] = {}
        self._squares: dict[str, torch.Tensor] = {}
        self._count = 0

    def add(self, gradient: Mapping[str, torch.Tensor]) -> None:
        """Add the gradient of one more batch; a missing gradient counts as zero."""
        self._count += 1
        for name, grad in gradient.items():
            if name not in self.means:
                self.means[name] = torch.zeros_like(grad, dtype=torch.float32)
                self._squares[name] = torch.zeros_like(self.means[name])
        for name, before in self.means.items():
            grad = gradient.get(name, torch.zeros_like(before))
            apart = grad - before
            self.means[name] = before + apart / self._count
            self._squares[name] += apart * (grad - self.means[name])

    def spread(self) -> dict[str, torch.Tensor]:
        """Return the standard deviation of each element; its square is the unbiased variance."""
        return {
            name: (total / max(1, self._count - 1)).sqrt() for name, total in self._squares.items()
        }
