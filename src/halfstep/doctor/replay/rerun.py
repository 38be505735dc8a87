"""Runs the operators of a recorded step again, possibly on another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.bundle.caller import Caller
from halfstep.doctor.bundle.recording import ALIAS, RANDOM, SCALE, Recording, decode, operator
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.replay.runs import Outcome, Runs
from halfstep.doctor.replay.tracer import Tracer
from halfstep.doctor.signals.values.positions import Positions
from halfstep.doctor.signals.watched import Watched
from halfstep.doctor.tape.tape import random_state
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.doctor.tensors.widen import Widen, widened

if TYPE_CHECKING:
    from halfstep.doctor.bundle.recording import Instruction
    from halfstep.doctor.record import Birth


class RecordedTracer(Tracer):
    """Traces a recorded step; the callers are read from the recording.

    Attributes:
        recorded: Caller of the operator that runs.
    """

    recorded = Caller()

    def caller(self, op: str) -> Caller:
        """Return the recorded caller of the operator."""
        del op
        return self.recorded


class Rerun(Runs):
    """Runs a recorded step.

    Args:
        recording: The recorded step.
        tensors: The tensors from outside the step, by number, on the host.
        iteration: Number of the step in the program, from 0.
        why: The reason why the step was investigated.
        loss: The tensor that the program called the last backward of the step on; None if unknown.
    """

    def __init__(
        self,
        recording: Recording,
        tensors: dict[int, torch.Tensor],
        iteration: int,
        why: str,
        loss: torch.Tensor | None,
    ) -> None:
        super().__init__(iteration, why, loss)
        self._recording = recording
        self._tensors = tensors
        self._device = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def scale(self) -> float:
        """The loss scale of the step."""
        return self._recording.scale

    def traced(self) -> tuple[Birth, ...]:
        """Run the step under the tracer."""
        names: dict[int, str] = {}
        positions = Positions(Watched())
        tracer = RecordedTracer(lambda: ("", ""), names, __file__, positions)
        outcome = self._run(tracer, names=names)
        return self._births(tracer, outcome)

    def _run(
        self, mode: Any = None, scale: float | None = None, names: dict[int, str] | None = None
    ) -> Outcome:
        outcome = Outcome([], {}, self.scale if scale is None else scale, [])
        state = random_state()
        try:
            with torch.no_grad():
                tensors = self._given(wide=isinstance(mode, Widen))
                for each in self._recording.given if names is not None else ():
                    assert names is not None
                    names[storage_key(tensors[each.number])] = each.name
                self._run_instructions(tensors, mode, outcome.scale)
            outcome.losses = [tensors[each] for each in self._recording.losses]
            outcome.ends = [tensors[each] for each in self._recording.ends]
            gradients = self._recording.gradients.values()
            outcome.gradients = dict(enumerate(tensors[each] for each in gradients))
        except Exception as error:  # noqa: BLE001  # whatever this machine cannot do
            outcome.note = f"{type(error).__name__}: {error}".partition("\n")[0]
        finally:
            state.restore()
        return outcome

    def _given(self, *, wide: bool) -> dict[int, torch.Tensor]:
        tensors = {}
        for each in self._recording.given:
            device = self._device if each.device != "cpu" else "cpu"
            value = self._tensors[each.number]
            tensor = torch.empty_strided(each.shape, each.stride, dtype=value.dtype, device=device)
            tensor.copy_(value)
            tensors[each.number] = widened(tensor) if wide else tensor
        return tensors

    def _run_instructions(self, tensors: dict[int, torch.Tensor], mode: Any, scale: float) -> None:
        for each in self._recording.instructions:
            if each.kind == RANDOM:
                self._set_generators([self._tensors[number] for number in each.args])
            elif each.kind == ALIAS:
                number, shape, stride, offset = each.args
                base = tensors[number]
                view = base.as_strided(shape, stride, base.storage_offset() + offset)
                tensors[each.results[0]] = view
            else:
                self._run_operator(each, tensors, mode, scale)

    def _run_operator(
        self, instruction: Instruction, tensors: dict[int, torch.Tensor], mode: Any, scale: float
    ) -> None:
        args = decode(instruction.args, tensors, self._device)
        kwargs = {
            name: decode(value, tensors, self._device) for name, value in instruction.kwargs.items()
        }
        if instruction.kind == SCALE:
            args[1] = scale
        if isinstance(mode, RecordedTracer):
            mode.recorded = self._recording.callers[instruction.caller]
        if mode is None:
            result = operator(instruction.name)(*args, **kwargs)
        else:
            with mode:
                result = operator(instruction.name)(*args, **kwargs)
        tensors.update(zip(instruction.results, tensors_in(result), strict=True))

    @staticmethod
    def _set_generators(states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1 and torch.cuda.is_available():
            for number, state in enumerate(states[1 : 1 + torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, number)
