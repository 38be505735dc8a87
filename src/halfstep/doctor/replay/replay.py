"""Runs a step again: unchanged, under the tracer, and in other formats or at other scales."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from halfstep.doctor.bundle.recorder import Recorder
from halfstep.doctor.internals import is_compiled, is_of_torch
from halfstep.doctor.record import Birth, GradientAgreement, Precision, Replay
from halfstep.doctor.replay.edits import in_effect
from halfstep.doctor.replay.influence.forward import Change, Forward, Trains
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.replay.playback import BOUNDARY, Playback, bare
from halfstep.doctor.replay.runs import Outcome, Runs, no_cudnn, no_hooks
from halfstep.doctor.replay.statements import Changed, changed_statements
from halfstep.doctor.replay.tracer import COMPUTED, Tracer
from halfstep.doctor.tape.modules import ModuleStack, unwrapped
from halfstep.doctor.tape.tape import Entry, changed_since, given_tensors
from halfstep.doctor.tensors.local import is_sharded
from halfstep.doctor.tensors.widen import Widen
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from halfstep.doctor.record import Grown
    from halfstep.doctor.record.attempts import Edit
    from halfstep.doctor.signals.values.positions import Positions


# Classes with these names in torch, halfstep and other libraries all exchange numbers.
_EXCHANGING = {"SyncBatchNorm", "FullyShardedDataParallel"}
SMALLER = 2.0**-16
_BATCH, _CONSTANT = "batch", "constant"


class Replayer(Runs):
    """Replays the step on a tape.

    Args:
        entries: The calls of the step.
        parameters: The parameters of models and optimizers, by name.
        stack: Follows the calls of modules while the step is traced.
        positions: Receives casts while the step is traced.
        iteration: Number of the step.
        why: The reason for the replay.
        computed: Keys of the storages of tensors whose -inf the loop did not write on purpose.
    """

    def __init__(
        self,
        entries: list[Entry],
        parameters: dict[str, torch.Tensor],
        stack: ModuleStack,
        positions: Positions,
        iteration: int,
        why: str,
        computed: frozenset[int] = frozenset(),
    ) -> None:
        self._entries = entries
        self._parameters = parameters
        self._stack = stack
        self._positions = positions
        self._computed = computed
        self._statements: list[Changed] = []
        backward = next((each for each in reversed(entries) if each.kind == "backward"), None)
        super().__init__(iteration, why, backward.value if backward else None)
        self.models = [
            bare(entry.function) for entry in entries if isinstance(entry.function, nn.Module)
        ]

    def traced(
        self, *, record: bool = False, scale: float | None = None
    ) -> tuple[tuple[Birth, ...], Tracer, Replay]:
        """Run the step under the tracer, without compiled code.

        Args:
            record: Whether to record the operators for a bundle.
            scale: Another loss scale; None for the loss scale of the step.

        Returns:
            The births, the tracer, and the result of the run.
        """
        names = self._names()
        recorder = Recorder(lambda each: names.get(storage_key(each), "")) if record else None
        owned = {storage_key(each): name for name, each in self._parameters.items()}
        tracer = Tracer(
            self._stack.where,
            names,
            BOUNDARY,
            self._positions,
            recorder,
            owned,
            self._parameters,
        )
        self._stack.start(self.models)
        try:
            with torch.compiler.set_stance("force_eager"):
                outcome = self._run(tracer, scale)
        finally:
            self._stack.stop()
        by_key = {id(tensor): name for name, tensor in self._parameters.items()}
        gradients = {by_key[key]: each for key, each in outcome.gradients.items()}
        tracer.dependence.end(outcome.losses, gradients)
        if recorder is not None:
            recorder.note = recorder.note or outcome.note
            recorder.finish(
                losses=outcome.losses, gradients=gradients, ends=outcome.ends, scale=outcome.scale
            )
        return self._births(tracer, outcome), tracer, self._replay("traced", outcome)

    def precision(self) -> tuple[Precision, tuple[Birth, ...]]:
        """Compare a finite step's loss and gradients with those in fp32.

        Returns:
            The comparison, or only a note why there is none; and the births in the finite step,
            which did no harm.
        """
        births, tracer, traced = self.traced()
        mine, self._plain = self._plain or self._run(), None
        if tracer.has_halves or any(map(is_compiled, self.models)):
            with torch.compiler.set_stance("force_eager"):
                exact = self._run(Widen())
        else:  # It would be the same step again.
            exact = mine
        note = traced.note or mine.note or exact.note
        if note or not mine.losses:
            note = note or "the last step had no backward"
            return Precision(note=note), births
        names = {id(tensor): name for name, tensor in self._parameters.items()}
        agreements = tuple(
            _agreement(names[key], mine.gradients[key] / mine.scale, gradient / exact.scale)
            for key, gradient in exact.gradients.items()
            if key in mine.gradients and not gradient.is_sparse
        )
        headroom = tracer.headroom
        precision = Precision(
            iteration=self.iteration,
            loss=mine.losses[-1].double().sum().item() / mine.scale,
            exact_loss=exact.losses[-1].double().sum().item() / exact.scale,
            agreements=agreements,
            bits_to_overflow=headroom.bits if headroom.largest else None,
            largest_module=headroom.module,
            detached=tuple(sorted(tracer.detached)),
            products=tracer.products.freeze(),
            cuts=tracer.dependence.cuts,
            strays=tuple(tracer.dependence.strays()),
            absorbed=tracer.rounding.absorbed,
            vanished=tracer.rounding.vanished,
            averaged=tracer.rounding.averaged,
            hidden_writes=tracer.hidden_writes.freeze(),
        )
        return precision, births

    def with_smaller_loss(self) -> Replay:
        """Run a step that has no loss scale, with its loss multiplied by `SMALLER`."""
        return self._replay("smaller loss", self._run(scale=SMALLER))

    def at_first_size(self, grown: Iterable[Grown]) -> Replay:
        """Run the step with each parameter scaled to its norm before the first step."""
        factors = {each.parameter: each.before / each.after for each in grown if each.after}
        leaves = {
            id(each): (each.detach() * factors[name]).requires_grad_(each.requires_grad)
            for name, each in self._parameters.items()
            if name in factors
        }
        return self._replay("first size", self._run(leaves=leaves))

    def step(self, leaves: dict[int, torch.Tensor]) -> Outcome:
        """Run the step with other values of its parameters.

        Args:
            leaves: The other parameters, by identity.
        """
        return self._run(leaves=leaves)

    @contextmanager
    def changed(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Let the step run with changed lines, of its functions or of the loop.

        Args:
            edits: The changes of the lines.

        Raises:
            ValueError: If a line cannot be changed.
        """
        lines = {entry.mark[:2] for entry in self._entries if entry.mark is not None}
        of_loop = [each for each in edits if (each.file, each.line) in lines]
        for each in of_loop:
            mine = [one for one in of_loop if one.file == each.file]
            found = changed_statements(self._entries, each.file, mine, each.line)
            if found is None or any(len(one.new) != 1 for one in mine):
                raise ValueError(f"line {each.line} of {each.file} cannot be changed")
            self._statements += found
        try:
            with in_effect([each for each in edits if each not in of_loop]):
                yield
        finally:
            self._statements = []

    def exact_step(self, leaves: dict[int, torch.Tensor]) -> Outcome:
        """Run the step in fp32 with other values of its parameters, without compiled code.

        Args:
            leaves: The other parameters, in fp32, by identity.
        """
        with torch.compiler.set_stance("force_eager"):
            return self._run(Widen(), leaves=_widened_leaves(self._parameters.values()) | leaves)

    def forward_mode(self, base: Forward | None = None, change: Change | None = None) -> Forward:
        """Return a mode that records the operators of a forward, or compares them with others."""
        return Forward(self._stack.where, BOUNDARY, base, change)

    def forward(
        self, mode: Forward, others: Mapping[Any, torch.Tensor], trains: Trains = "nothing"
    ) -> Outcome:
        """Run the step without its backward passes.

        Args:
            mode: Records the operators.
            others: Other inputs of models, by the keys of those that they replace.
            trains: Which modules keep the modes of the step; the others are in evaluation mode.
        """
        entries = self._entries
        if trains != "all":
            is_own = trains == "own"
            entries = [
                replace(
                    each,
                    training=tuple(
                        is_training and is_own and not is_of_torch(type(module))
                        for module, is_training in zip(each.modules, each.training, strict=True)
                    ),
                )
                for each in entries
            ]
        playback = Playback(entries, self.models, [], differentiates=False)
        self._stack.start(self.models)
        try:
            with torch.compiler.set_stance("force_eager"):
                return playback.run(mode, None, others)
        finally:
            self._stack.stop()

    @property
    def trainable(self) -> dict[int, str]:
        """The names of the parameters that require gradients, by key of their storage."""
        return {
            storage_key(each): name for name, each in self._parameters.items() if each.requires_grad
        }

    def _names(self) -> dict[int, str]:
        names = {
            storage_key(each): _BATCH if entry.kind == "module" else _CONSTANT
            for entry, each in given_tensors(self._entries)
        }
        names |= dict.fromkeys(self._computed & names.keys(), COMPUTED)
        for model in map(unwrapped, self.models):
            for name, buffer in model.named_buffers():
                names[storage_key(buffer)] = f"buffer {name}"
            for name, parameter in model.named_parameters():
                names[storage_key(parameter)] = f"parameter {name}"
        for name, tensor in self._parameters.items():
            if names.get(storage_key(tensor)) in (None, _BATCH, _CONSTANT):
                names[storage_key(tensor)] = f"parameter {name}"
        return names

    def _run(
        self,
        mode: Any = None,
        scale: float | None = None,
        leaves: dict[int, torch.Tensor] | None = None,
    ) -> Outcome:
        outcome = Outcome([], {}, 1.0, [])
        if changed_since(self._entries):
            outcome.note = "a batch was changed in place after it was used"
            return outcome
        if any(map(waits_for_others, self.models)):
            outcome.note = (
                "the model exchanges numbers with other processes, which do not run this step again"
            )
            return outcome
        wide = isinstance(mode, Widen)
        if leaves is None:
            # The gradient of a half leaf is half, so fp32 runs need fp32 copies of the leaves.
            leaves = _widened_leaves(self._parameters.values()) if wide else {}
        playback = Playback(
            self._entries, self.models, [*self._parameters.values()], self._statements
        )
        outcome = playback.run(mode, scale, leaves)
        # Under autocast, cuDNN packs the weights of an RNN as half precision even in an fp32 run.
        # A hook that a wrapper registers may fail outside of the wrapper's own backward.
        for without in (*((no_cudnn(),) if wide else ()), no_hooks()):
            if outcome.note:
                with without:
                    again = playback.run(mode, scale, leaves)
                outcome = outcome if again.note else again
        return outcome


def waits_for_others(model: nn.Module) -> bool:
    """Return whether a model's forward or backward exchanges data with other processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    if torch.distributed.get_world_size() == 1:
        return False
    exchanges = any(type(each).__name__ in _EXCHANGING for each in model.modules())
    return exchanges or any(map(is_sharded, model.parameters()))


def _widened_leaves(parameters: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    return {
        id(each): each.detach().float().requires_grad_(each.requires_grad)
        for each in parameters
        if each.dtype in HALVES
    }


def _agreement(name: str, mine: torch.Tensor, exact: torch.Tensor) -> GradientAgreement:
    mine, exact = mine.detach().double().flatten(), exact.detach().double().flatten()
    norm, exact_norm = mine.norm().item(), exact.norm().item()
    cosine = None
    if norm and exact_norm:
        cosine = (mine @ exact).item() / (norm * exact_norm)
    flushed = (mine == 0) & (exact != 0)
    return GradientAgreement(
        parameter=name,
        cosine=cosine,
        flushed=flushed.double().mean().item(),
        lost=exact[flushed].norm().item(),
        norm=norm,
        exact_norm=exact_norm,
    )
