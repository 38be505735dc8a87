"""Data classes whose methods are made when they are first needed.

`dataclasses` compiles five functions for each class, which takes 0.4 ms. A watched program imports
300 classes and creates instances of half of them.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as made_at_once
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool, eq: bool = True) -> Callable[[type], type]:
        """Return a decorator like that of `dataclasses`, for classes without options of fields.

        Args:
            frozen: Whether attributes cannot be set.
            slots: Must be True.
            eq: Whether instances are compared by their fields.
        """
        assert slots

        def decorate(kind: type) -> type:
            made = made_at_once(init=False, repr=False, eq=False, slots=True)(kind)
            _add(made, "__init__", _initializer(made, frozen=frozen))
            _add(made, "__repr__", _repr)
            if eq:
                _add(made, "__eq__", _equality(made))
                own = _hash(made) if frozen else None
                if kind.__dict__.get("__hash__") is None:  # None where only __eq__ is defined
                    made.__hash__ = own
            if frozen:
                made.__setattr__ = made.__delattr__ = _refuse
                made.__getstate__, made.__setstate__ = _state, _restore
            return made

        return decorate


def _add(kind: type, name: str, function: Any) -> None:
    if name not in kind.__dict__:
        setattr(kind, name, function)


def _initializer(kind: type, *, frozen: bool) -> Any:
    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__ = _compiled(kind, frozen=frozen)  # type: ignore[misc]
        kind.__init__(self, *args, **kwargs)  # type: ignore[misc]

    return first


def _compiled(kind: type, *, frozen: bool) -> Any:
    """Return the `__init__` of a data class; `dataclasses` has none without all of its class."""
    given: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, lines = ["self"], []
    for each in fields(kind):
        value = name = each.name
        if each.default_factory is not MISSING:
            given[f"_made_{name}"] = each.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_made_{name}() if {name} is _missing else {name}"
        elif each.default is not MISSING:
            given[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    body = "; ".join(lines or ["pass"])
    exec(f"def __init__({', '.join(parameters)}): {body}", given)  # noqa: S102  # names of fields
    init = given["__init__"]
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    return init


def _repr(self: Any) -> str:
    inner = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self))
    return f"{type(self).__qualname__}({inner})"


def _values(kind: type) -> Callable[[Any], Any]:
    """Return a function that returns the values of an instance's fields, as a tuple."""
    names = [each.name for each in fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, each) for each in names)


def _equality(kind: type) -> Any:
    values = _values(kind)

    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _hash(kind: type) -> Any:
    values = _values(kind)
    return lambda self: hash(values(self))


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r} of {type(self).__name__}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
