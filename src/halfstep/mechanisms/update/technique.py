"""Weight updates of bf16 parameters that do not stall: stochastic rounding and Kahan summation.

With rounding to nearest, an update smaller than half the spacing of bf16 is lost. With stochastic
rounding, the weight is right on average. Kahan summation keeps the rounding error (the
compensation) and adds it to the next update. See Zamirai et al., "Revisiting BFloat16 Training"
(arXiv:2010.06192), sections 4.1 (stochastic) and 4.2 (Kahan).

The user's optimizer runs in fp32 on stand-ins: temporary fp32 copies of a few parameters at a time.
The format of the optimizer's own state does not change. Large parameters of SGD on a CPU need no
stand-in: one pass over memory widens, updates and rounds them, with the same bits. Nor do bf16
parameters on a GPU, which one kernel updates together (`optim/in_one_kernel.py`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from halfstep.kernels.native.fused import SGDSettings, step_sgd_stochastically
from halfstep.kernels.rounding import LARGE, round_compensated, round_stochastically
from halfstep.kernels.scratch import widened
from halfstep.kernels.update.reference import exact, split
from halfstep.mechanisms.technique import Stage, Technique
from halfstep.optim.bf16 import AdamBf16, SGDBf16
from halfstep.optim.eight_bit import Adam8
from halfstep.optim.foreach import in_chunks
from halfstep.optim.in_one_kernel import CORRECTIONS, InOneKernel
from halfstep.optim.one_pass import settings_of, updates
from halfstep.optim.watched import has_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.optim.in_one_kernel import Way


class RoundedUpdate(Technique):
    """Rounds the weight update of bf16 parameters stochastically or with a Kahan compensation.

    Args:
        how: "stochastic", "kahan", or "split16" and "split8" for the field `master_weights`.
        seed: Seed of the stochastic rounding; the same seed gives the same weights.
    """

    stage = Stage.CHECK
    _field = "update"

    def __init__(self, how: Way, *, seed: int = 0) -> None:
        self._how = how
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._compensations: dict[torch.Tensor, torch.Tensor] = {}
        self._in_one_kernel = InOneKernel(how, seed, self._compensations)
        self._optimizers: Sequence[Optimizer] = ()

    @property
    def generators(self) -> Iterable[torch.Generator]:
        """The generators of the stochastic rounding, one for each device."""
        return self._generators.values()

    @property
    def lost_updates(self) -> Iterable[torch.Tensor]:
        """The counters of the kernel, which are those of a GPU."""
        return self._in_one_kernel.lost.values()

    @property
    def skips_on_device(self) -> bool:  # type: ignore[override]  # it depends on the parameters
        """Whether one kernel updates all bf16 parameters, and leaves all as it is in a skip."""
        return all(
            param.dtype != torch.bfloat16 or param in taken
            for optimizer in self._optimizers
            for taken in [self._in_one_kernel.takes(optimizer)]
            for param in _params(optimizer)
        )

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Refuse optimizers other than those known to update each parameter independently."""
        del models
        self._optimizers = optimizers
        for optimizer in optimizers:
            if type(optimizer) not in (SGD, Adam, AdamW, SGDBf16, AdamBf16, Adam8):
                raise TypeError(
                    f"{self._field}={self._how!r} knows torch.optim.SGD, Adam and AdamW, not "
                    f"{type(optimizer).__name__}; use one of them, or recipe='o2', whose fp32 "
                    "master weights work with any optimizer"
                )

    def full_precision(self, param: torch.Tensor) -> torch.Tensor:
        """Return `param` plus its compensation in fp32, or `param` if it has no compensation."""
        compensation = self._compensations.get(param)
        return param if compensation is None else exact(param.detach(), compensation)

    def step(self, optimizer: Optimizer, take: Callable[[], None]) -> None:
        """Step in fp32 on one chunk of parameters after another, and round the results to bf16."""
        taken = self._in_one_kernel.takes(optimizer)
        params = [param for param in _params(optimizer) if param not in taken]
        in_one_pass = _sgd_in_one_pass(optimizer) if self._how == "stochastic" else {}
        # Without parameters too: the optimizer counts its steps, and so do schedulers.
        for chunk in [*in_chunks(params)] or [[]]:
            stand_ins = {
                param: self._stand_in(param) if param.dtype == torch.bfloat16 else param
                for param in chunk
                if param not in in_one_pass
            }
            with _standing_in(optimizer, stand_ins):
                take()
            with torch.no_grad():
                # The order of the parameters determines which random numbers each of them gets.
                for param in chunk:
                    if param in in_one_pass:
                        self._step_in_one_pass(optimizer, param, in_one_pass[param])
                        continue
                    stand_in = stand_ins[param]
                    if stand_in is not param and stand_in.grad is not None:
                        self._round_back(param, stand_in)
        if taken:
            order = {param: place for place, param in enumerate(self._params())}
            with torch.no_grad():
                self._in_one_kernel.step(optimizer, taken, order)

    def steps_in_one_kernel(self, optimizer: Optimizer) -> bool:
        """Tell it of optimizers that count their steps on the device."""
        counts = isinstance(optimizer, (SGDBf16, AdamBf16, Adam8))
        return counts and {*_params(optimizer)} <= self._in_one_kernel.takes(optimizer)

    @contextmanager
    def loading(self, optimizer: Optimizer) -> Iterator[None]:
        """Let the optimizer load its state in fp32; torch would cast it to the parameters' bf16."""
        stand_ins = {
            p: nn.Parameter(torch.empty(0, device=p.device)) if p.dtype == torch.bfloat16 else p
            for group in optimizer.param_groups
            for p in group["params"]
        }
        with _standing_in(optimizer, stand_ins):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the compensations in the order of the parameters, and the generators' states."""
        return {
            "compensations": [self._compensations.get(param) for param in self._params()],
            "generators": {
                str(device): generator.get_state() for device, generator in self._generators.items()
            },
            "draws": {str(device): int(n) for device, n in self._in_one_kernel.draws.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        saved = zip(self._params(), state["compensations"], strict=True)
        self._compensations.clear()
        self._compensations |= {
            param: value.to(param.device, copy=True) for param, value in saved if value is not None
        }
        for name, number in state.get("draws", {}).items():
            device = torch.device(name)
            self._in_one_kernel.draws[device] = torch.tensor(number, device=device)
        for device, random_state in state["generators"].items():
            self._generator(torch.device(device)).set_state(random_state.cpu())

    def _params(self) -> list[torch.Tensor]:
        return [param for optimizer in self._optimizers for param in _params(optimizer)]

    def _stand_in(self, param: torch.Tensor) -> nn.Parameter:
        compensation = self._compensations.get(param)
        value = widened(param.detach()) if compensation is None else exact(param, compensation)
        stand_in = nn.Parameter(value, param.requires_grad)
        stand_in.grad = None if param.grad is None else widened(param.grad)
        return stand_in

    def _round_back(self, param: torch.Tensor, stand_in: torch.Tensor) -> None:
        if self._how == "stochastic":
            round_stochastically(stand_in, self._generator(param.device), into=param)
        else:
            if self._how == "kahan":
                rounded, lost = round_compensated(stand_in)
            else:
                rounded, lost = split(stand_in.detach(), CORRECTIONS[self._how])
            param.copy_(rounded)
            kept = self._compensations.setdefault(param, lost)
            if kept is not lost:
                kept.copy_(lost)

    def _step_in_one_pass(
        self, optimizer: Optimizer, param: torch.Tensor, settings: SGDSettings
    ) -> None:
        momentum = optimizer.state[param]["momentum_buffer"] if settings.momentum else None
        assert param.grad is not None, "as found by _sgd_in_one_pass"
        generator = self._generator(param.device)
        step_sgd_stochastically(param.detach(), param.grad, momentum, settings, generator)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _params(optimizer: Optimizer) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _sgd_in_one_pass(optimizer: Optimizer) -> dict[torch.Tensor, SGDSettings]:
    """Return the large bf16 parameters that the C code can update as this SGD would, with settings.

    The result is empty if the optimizer has step hooks, which may read the parameters that it
    updates.
    """
    if type(optimizer) is not SGD or has_hooks(optimizer):
        return {}
    found: dict[torch.Tensor, SGDSettings] = {}
    for group in optimizer.param_groups:
        settings = settings_of(group)
        large = [
            param
            for param in group["params"]
            if param.dtype == torch.bfloat16 and param.numel() >= LARGE and param.grad is not None
        ]
        if settings is not None:
            found |= {param: settings for param, _ in updates(large, optimizer.state, settings)}
    return found


@contextmanager
def _standing_in(
    optimizer: Optimizer, stand_ins: dict[torch.Tensor, torch.Tensor]
) -> Iterator[None]:
    """Replace the parameters of `optimizer` by `stand_ins` in this context, also in its state.

    Args:
        optimizer: The optimizer.
        stand_ins: The replacement of each parameter. The optimizer does not see other parameters.
    """
    groups = optimizer.param_groups
    kept = [group["params"] for group in groups]
    for group, params in zip(groups, kept, strict=True):
        group["params"] = [stand_ins[param] for param in params if param in stand_ins]
    _rekey(optimizer, stand_ins)
    try:
        yield
    finally:
        _rekey(optimizer, {stand_in: param for param, stand_in in stand_ins.items()})
        for group, params in zip(optimizer.param_groups, kept, strict=True):
            group["params"] = params


def _rekey(optimizer: Optimizer, names: dict[torch.Tensor, torch.Tensor]) -> None:
    for old, new in names.items():
        if old is not new and old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
