"""Computes every site of a model alone in the formats of a recipe, from exact inputs.

One forward pass under the recipe shows the formats of each call's inputs. Then each call of the
recorded fp32 step is repeated in these formats, forward and backward, with the exact inputs and the
exact gradient of its output. So the results differ from the record only by the call's own rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from halfstep.advise.choose.record import floating, is_finite
from halfstep.advise.choose.sites import CallKey, Listener
from halfstep.errors import reason
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from halfstep.advise.choose.record import Call, Record
    from halfstep.advise.choose.sites import Site
    from halfstep.advise.subject import Subject
    from halfstep.engine import Engine


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Dtypes of the floating-point inputs and of the floating-point results of one call."""

    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]

    @property
    def any_half(self) -> bool:
        """Whether the call takes or returns half-precision tensors."""
        return any(dtype in HALVES for dtype in (*self.inputs, *self.outputs))


@dataclass(slots=True)
class Damage:
    """The effect of rounding at one site.

    Attributes:
        nonfinite: Elements of its results that are inf or NaN only in the half format, over all
            calls.
        nonfinite_gradients: Elements of the gradients of its inputs that are inf or NaN only in the
            half format, at the loss scale, over all calls.
        error: Relative error of its results, as a ratio of 2-norms, in the worst call.
        gradient_error: Relative error of the gradients of its inputs, in the worst call.
        raised: The error of an operator that cannot compute in the format; "" if it can.
    """

    nonfinite: int = 0
    nonfinite_gradients: int = 0
    error: float = 0.0
    gradient_error: float = 0.0
    raised: str = ""

    @property
    def breaks(self) -> bool:
        """Whether rounding causes inf, NaN or an error."""
        return bool(self.nonfinite or self.nonfinite_gradients or self.raised)

    @property
    def worst_error(self) -> float:
        """The larger of the two relative errors."""
        return max(self.error, self.gradient_error)

    def include(self, other: Damage) -> None:
        """Include the damage of another call of the same site."""
        self.nonfinite += other.nonfinite
        self.nonfinite_gradients += other.nonfinite_gradients
        self.error = max(self.error, other.error)
        self.gradient_error = max(self.gradient_error, other.gradient_error)
        self.raised = self.raised or other.raised


class SiteFailsError(RuntimeError):
    """A site cannot compute in the formats that a recipe gives it.

    Args:
        site: The site.
        said: The error that the site raised, in one line.
    """

    def __init__(self, site: Site, said: str) -> None:
        super().__init__(said)
        self.site = site


def formats_under(engine: Engine, subject: Subject, batch: Any) -> dict[CallKey, Dtypes]:
    """Run a forward pass under the engine's recipe, and return the dtypes of every call.

    Raises:
        SiteFailsError: If an operator of the model raises, and the model does not catch the error.
    """
    found: dict[CallKey, Dtypes] = {}
    failed: list[Site] = []

    def look(
        key: CallKey, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        inputs = tuple(leaf.dtype for leaf in floating((args, kwargs)))
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError):
            failed.append(key.site)
            raise
        failed.clear()  # the model caught the error of an earlier call
        found[key] = Dtypes(inputs, tuple(leaf.dtype for leaf in floating(result)))
        return result

    try:
        with torch.no_grad(), engine.autocast(), Listener(engine.bare_models[0], look):
            subject.loss(engine.model, batch)
    except (RuntimeError, TypeError, ValueError) as error:
        if failed:
            raise SiteFailsError(failed[0], reason(error)) from error
        raise
    return found


def damages(
    engine: Engine, recorded: Record, dtypes: Mapping[CallKey, Dtypes], scale: float
) -> dict[Site, Damage]:
    """Repeat alone each call that a recipe makes in a half format, and return the damage by site.

    Args:
        engine: An engine with the recipe.
        recorded: The recorded steps in fp32.
        dtypes: Dtypes of every call under the recipe.
        scale: The loss scale.
    """
    found: dict[Site, Damage] = {}
    with torch.random.fork_rng():
        for call in recorded.calls:
            formats = dtypes.get(call.key)
            if formats is not None and formats.any_half:
                damage = found.setdefault(call.key.site, Damage())
                damage.include(_alone(engine, call, formats, scale))
    return found


def _alone(engine: Engine, call: Call, formats: Dtypes, scale: float) -> Damage:
    exact = _Rerun(call, None)
    exact.run()
    half = _Rerun(call, formats.inputs)
    try:
        with engine.autocast():
            half.run()
    except (RuntimeError, TypeError, ValueError) as error:
        return Damage(raised=reason(error))
    damage = Damage(
        nonfinite=sum(map(_only_here_nonfinite, half.outputs, call.outputs)),
        error=_error(half.outputs, call.outputs),
    )
    if damage.nonfinite == 0 and call.gradients:
        right = exact.gradients(call.gradients, 1.0)
        found = half.gradients(call.gradients, scale)
        damage.nonfinite_gradients = sum(map(_only_here_nonfinite, found, right))
        # Gradients of parameters and gradients of activations are compared separately, because
        # their magnitudes differ. Within each group they are compared together, because the exact
        # gradient of a single tensor may be zero, such as that of a bias before a norm layer.
        of_params = [at for at, start in enumerate(exact.starts) if isinstance(start, nn.Parameter)]
        of_values = [at for at in range(len(right)) if at not in of_params]
        damage.gradient_error = (
            max(
                _error([found[at] for at in some], [right[at] for at in some])
                for some in (of_params, of_values)
                if some
            )
            if right
            else 0.0
        )
    return damage


class _Rerun:
    """One call that is repeated with inputs in given dtypes, detached from their graph.

    Args:
        call: The call.
        formats: Dtypes of its floating-point inputs; None keeps fp32.
    """

    def __init__(self, call: Call, formats: Sequence[torch.dtype] | None) -> None:
        self._call = call
        leaves, self._spec = tree_flatten((call.args, dict(call.kwargs)))
        wanted = iter(formats or ())
        self.starts: list[torch.Tensor] = []
        self._given: list[Any] = []
        for leaf in leaves:
            if not (isinstance(leaf, torch.Tensor) and leaf.is_floating_point()):
                self._given.append(leaf)
                continue
            dtype = next(wanted, leaf.dtype)
            start = leaf.detach().to(dtype, copy=True).requires_grad_(leaf.requires_grad)
            if isinstance(leaf, nn.Parameter):
                start = nn.Parameter(start, requires_grad=leaf.requires_grad)
            if leaf.requires_grad:
                self.starts.append(start)
            # Cloned, because an in-place operator cannot write to a leaf.
            self._given.append(start.clone() if leaf.requires_grad else start)
        self.outputs: list[torch.Tensor] = []

    def run(self) -> None:
        """Call the operator."""
        torch.set_rng_state(self._call.random_state)
        args, kwargs = tree_unflatten(self._given, self._spec)
        with torch.enable_grad():
            self.outputs = floating(self._call.func(*args, **kwargs))

    def gradients(self, of_outputs: Mapping[int, torch.Tensor], scale: float) -> list[torch.Tensor]:
        """Return the unscaled fp32 gradients of the inputs, from the scaled output gradients."""
        reached = [at for at in of_outputs if self.outputs[at].requires_grad]
        if not (reached and self.starts):
            return []
        found = torch.autograd.grad(
            [self.outputs[at] for at in reached],
            self.starts,
            [(of_outputs[at] * scale).to(self.outputs[at].dtype) for at in reached],
            allow_unused=True,
        )
        return [
            torch.zeros_like(start, dtype=torch.float32) if grad is None else grad.float() / scale
            for grad, start in zip(found, self.starts, strict=True)
        ]


def _only_here_nonfinite(half: torch.Tensor, exact: torch.Tensor) -> int:
    if is_finite(half):
        return 0
    return int((~half.isfinite() & exact.isfinite()).sum())


def _difference(half: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    # In float64, a difference is finite if and only if both values are.
    return (half.detach().double() - exact.detach().double()).nan_to_num_(0.0, 0.0, 0.0)


def _error(half: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """Return the relative error of all tensors together, as a ratio of 2-norms."""
    lost = sum(float(_difference(*pair).square_().sum()) for pair in zip(half, exact, strict=True))
    energy = sum(
        float(right.detach().double().nan_to_num_(0.0, 0.0, 0.0).square_().sum()) for right in exact
    )
    return math.sqrt(lost / energy) if energy > 0 else 0.0
