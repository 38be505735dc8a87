"""Settings of a data set that is shared by its parts, made through one of the parts.

`random_split` gives parts of one data set. So `test_set.dataset.transform = plain` also changes
what the training set returns.
"""

from __future__ import annotations

import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, Dataset, Subset

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.data.overlap import root_of
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched

_MOST = 64  # attributes
_PLAIN = (int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class SharedSetting:
    """A setting of a data set that has several parts, at the last line that makes it.

    Attributes:
        kind: Class of the data set.
        name: The attribute.
        parts: Number of its parts that a loader has gone over since then.
        replaced: Whether this line had set another value before, which no part was read with.
        site: The line.
    """

    kind: str
    name: str
    parts: int
    replaced: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """All such settings."""

    signal: ClassVar[str] = "shared_settings"
    settings: tuple[SharedSetting, ...] = ()


@dataclass(slots=True)
class _Set:
    """The last line that set an attribute, its value, and the parts that were read after it."""

    line: Mark | None
    value: Any
    replaced: bool
    parts: set[tuple[int, ...]] = field(default_factory=set)


class Shared(Signal):
    """Notes the attributes of data sets with several parts that the loop sets."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._parts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._settings: WeakKeyDictionary[Any, dict[str, _Set]] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of what makes a part, sets an attribute, and reads a part."""
        yield Hook(Subset, "__init__", self.watched.afterwards(self._on_part))
        yield Hook(Dataset, "__setattr__", self.watched.here(self._on_set))
        yield Hook(DataLoader, "__iter__", self.watched.here(self._on_pass))

    def _on_part(self, part: Any, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            whole = root_of(part)[0]
            self._parts[whole] = self._parts.get(whole, 0) + 1

    def _on_set(self, original: Any, whole: Any, name: str, value: Any, /) -> None:
        original(whole, name, value)
        if isinstance(whole, Subset) or whole not in self._parts:
            return
        # Its own methods set what belongs to it, such as a count of epochs.
        if sys._getframe(2).f_locals.get("self") is whole:  # noqa: SLF001
            return
        with self.watched.guard.own():
            known = self._settings.setdefault(whole, {})
            if len(known) < _MOST:
                line, before = calling_line(), known.get(name)
                value = value if isinstance(value, _PLAIN) else id(value)
                replaced = (
                    before is not None
                    and before.line == line
                    and not before.parts
                    and (before.replaced or before.value != value)
                )
                known[name] = _Set(line, value, replaced)

    def _on_pass(self, original: Any, loader: Any, /) -> Any:
        with self.watched.guard.own():
            if isinstance(loader.dataset, Subset):
                whole, indices = root_of(loader.dataset)
                for each in self._settings.get(whole, {}).values():
                    each.parts.add(tuple((indices or ())[:8]))
        return original(loader)

    def freeze(self) -> dict[str, Any]:
        """Return the settings after which several parts were read."""
        found = [
            SharedSetting(
                type(whole).__name__, name, len(each.parts), each.replaced, site(each.line)
            )
            for whole, settings in self._settings.items()
            for name, each in settings.items()
            if self._parts[whole] > 1 and len(each.parts) > 1
        ]
        return {SharedSettings.signal: SharedSettings(tuple(found))}
