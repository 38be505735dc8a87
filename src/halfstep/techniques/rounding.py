"""Weight updates of bf16 parameters that do not stall: stochastic rounding and Kahan summation.

An update smaller than half the spacing of bf16 is lost when it is rounded to nearest. Rounded
stochastically it survives on average; with a compensation it is kept for later. See Zamirai et al.,
"Revisiting BFloat16 Training" (arXiv:2010.06192), sections 4.1 (stochastic) and 4.2 (Kahan).

The optimizer itself, whichever it is, runs in fp32 on stand-ins that exist only while it steps, a
few parameters at a time; its own state stays as it is. Large parameters of SGD on a CPU need no
stand-in: one pass over memory widens, updates and rounds them, with the same bits.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from halfstep.kernels.native.fused import SGDSettings, step_sgd_stochastically
from halfstep.kernels.rounding import round_compensated, round_stochastically
from halfstep.kernels.scratch import widened
from halfstep.optim.bf16 import AdamBf16, SGDBf16
from halfstep.optim.foreach import in_chunks
from halfstep.optim.one_pass import updates
from halfstep.optim.watched import has_hooks
from halfstep.techniques.base import Stage, Technique

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim import Optimizer


class RoundedUpdate(Technique):
    """Round the weight update of bf16 parameters stochastically or with a compensation.

    Args:
        how: "stochastic" or "kahan".
        seed: Seed of the stochastic rounding; the same seed gives the same weights.
    """

    stage = Stage.CHECK
    skips_on_device = False

    def __init__(self, how: Literal["stochastic", "kahan"], *, seed: int) -> None:
        self._how = how
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._compensations: dict[torch.Tensor, torch.Tensor] = {}
        self._optimizers: Sequence[Optimizer] = ()

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Refuse optimizers whose update is not a function of one parameter at a time."""
        del models
        self._optimizers = optimizers
        for optimizer in optimizers:
            if type(optimizer) not in (SGD, Adam, AdamW, SGDBf16, AdamBf16):
                raise TypeError(
                    f"update={self._how!r} knows torch.optim.SGD, Adam and AdamW, not "
                    f"{type(optimizer).__name__}; use one of them, or recipe='o2', whose fp32 "
                    "master weights work with any optimizer"
                )

    def full_precision(self, param: torch.Tensor) -> torch.Tensor:
        """Return the parameter with its compensation."""
        compensation = self._compensations.get(param)
        return param if compensation is None else param.float() + compensation

    def step(self, optimizer: Optimizer, take: Callable[[], None]) -> None:
        """Step in fp32 on a chunk of parameters after the other, and round each back."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        in_one_pass = _sgd_in_one_pass(optimizer) if self._how == "stochastic" else {}
        for chunk in in_chunks(params):
            stand_ins = {
                param: self._stand_in(param) if param.dtype == torch.bfloat16 else param
                for param in chunk
                if param not in in_one_pass
            }
            with _standing_in(optimizer, stand_ins):
                take()
            with torch.no_grad():
                # In the order of the parameters, which decides what random numbers each gets.
                for param in chunk:
                    if param in in_one_pass:
                        self._step_in_one_pass(optimizer, param, in_one_pass[param])
                        continue
                    stand_in = stand_ins[param]
                    if stand_in is not param and stand_in.grad is not None:
                        self._round_back(param, stand_in)

    @contextmanager
    def loading(self, optimizer: Optimizer) -> Iterator[None]:
        """Keep the optimizer's state in fp32 while it loads; torch casts it to the parameters."""
        stand_ins = {
            p: nn.Parameter(torch.empty(0, device=p.device)) if p.dtype == torch.bfloat16 else p
            for group in optimizer.param_groups
            for p in group["params"]
        }
        with _standing_in(optimizer, stand_ins):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the compensations in the order of the parameters, and the random states."""
        return {
            "compensations": [self._compensations.get(param) for param in self._params()],
            "generators": {
                str(device): generator.get_state() for device, generator in self._generators.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        saved = zip(self._params(), state["compensations"], strict=True)
        self._compensations = {
            param: value.to(param.device, copy=True) for param, value in saved if value is not None
        }
        for device, random_state in state["generators"].items():
            self._generator(torch.device(device)).set_state(random_state.cpu())

    def _params(self) -> list[torch.Tensor]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [param for group in groups for param in group["params"]]

    def _stand_in(self, param: torch.Tensor) -> nn.Parameter:
        value = widened(param.detach())
        if param in self._compensations:
            value += self._compensations[param]
        stand_in = nn.Parameter(value, param.requires_grad)
        stand_in.grad = None if param.grad is None else widened(param.grad)
        return stand_in

    def _round_back(self, param: torch.Tensor, stand_in: torch.Tensor) -> None:
        if self._how == "stochastic":
            round_stochastically(stand_in, self._generator(param.device), into=param)
        else:
            rounded, self._compensations[param] = round_compensated(stand_in)
            param.copy_(rounded)

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


def _sgd_in_one_pass(optimizer: Optimizer) -> dict[torch.Tensor, SGDSettings]:
    """Return the large bf16 parameters that C can update as this SGD would, and its settings.

    There are none where somebody's hook may look at what the optimizer updates.
    """
    if type(optimizer) is not SGD or has_hooks(optimizer):
        return {}
    return {param: settings for param, _, _, settings in updates(optimizer, torch.bfloat16)}


@contextmanager
def _standing_in(
    optimizer: Optimizer, stand_ins: dict[torch.Tensor, torch.Tensor]
) -> Iterator[None]:
    """Let `optimizer` see only the keys of `stand_ins`, each replaced, state and all."""
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
