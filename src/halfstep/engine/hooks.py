"""The hooks of all techniques at each point of a step, collected once for the engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from halfstep.mechanisms.technique import Technique

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of all techniques: a field for each method of `Technique`.

    A field holds the methods of the techniques that override it, in the order of the techniques.
    """

    adopt: tuple[Callable[..., Any], ...]
    forward: tuple[Callable[..., Any], ...]
    before_backward: tuple[Callable[..., Any], ...]
    before_step: tuple[Callable[..., Any], ...]
    step: tuple[Callable[..., Any], ...]
    after_step: tuple[Callable[..., Any], ...]

    @classmethod
    def of(cls, techniques: Sequence[Technique]) -> Self:
        """Collect the hooks of techniques."""
        return cls(
            **{
                field.name: tuple(
                    getattr(technique, field.name)
                    for technique in techniques
                    if _uses(technique, field.name)
                )
                for field in fields(cls)
            }
        )


def _uses(technique: Technique, name: str) -> bool:
    if name == "forward":
        return technique.enters_forward
    return getattr(type(technique), name) is not getattr(Technique, name)
