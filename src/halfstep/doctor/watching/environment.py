"""The environment of a program, with what torch or doctor has switched on or off in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from halfstep.doctor.actions.scaling import Scaling
from halfstep.doctor.actions.steps import Steps
from halfstep.doctor.signals.program.graphs import Graphs
from halfstep.doctor.signals.program.switched_off import SwitchedOff
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import environment


class Surroundings(Signal):
    """Reads the environment at the end of a watch."""

    def freeze(self) -> dict[str, Any]:
        """Return the environment."""
        watched = self.watched
        read = replace(
            environment(watched.registry.names().values()),
            hold_back=watched.settings.hold_back,
            scaler_off=watched[Scaling].off,
            autocast_off=watched[SwitchedOff].autocast,
            autocast_on=watched[SwitchedOff].on,
            graphs=watched[Graphs].begun,
            framework=watched[Steps].framework or "",
        )
        return {"environment": read}
