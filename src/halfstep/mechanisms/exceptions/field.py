"""Field `exceptions`: modules and operators that compute in a format of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from halfstep.errors import closest
from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Exceptions(Part):
    """Lets modules and operators compute in a format other than that of the rest of the model."""

    field = "exceptions"
    place = 130
    purpose = (
        "Formats of single modules or operators, by name or pattern, in the forward and backward "
        "pass. If several patterns match, the longest applies."
    )
    allowed = {
        "{'head.*': 'fp32'}": "the modules that match, with everything inside them",
        "{'op:softmax': 'fp32'}": "an operator, wherever the model calls it",
        "{'blocks.3.attn.softmax': 'fp32'}": "an operator, where a matching module calls it",
    }

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse a mapping of patterns to "fp32", "fp16" or "bf16"."""
        pairs = given if isinstance(given, Mapping) else None
        if isinstance(given, tuple) and all(isinstance(pair, tuple) for pair in given):
            pairs = dict(given)
        if not pairs:
            raise ValueError(
                f"recipe field exceptions is {given!r}; allowed: a mapping such as "
                "{'head.*': 'fp32', 'op:softmax': 'fp32'}"
            )
        for pattern, format_ in pairs.items():
            if not isinstance(pattern, str) or not pattern.removeprefix("op:"):
                raise ValueError(
                    f"exceptions names {pattern!r}; allowed: a module ('head', 'blocks.*.attn') or "
                    "an operator ('op:softmax')"
                )
            if format_ not in _FORMATS:
                options = ", ".join(map(repr, _FORMATS))
                raise ValueError(
                    f"exceptions gives {pattern!r} the format {format_!r}; allowed: {options}"
                    f"{closest(format_, _FORMATS)}"
                )
        # Sort from the shortest (least specific) to the longest pattern: later patterns override
        # earlier ones.
        return cls(tuple(sorted(pairs.items(), key=lambda pair: (len(pair[0]), pair[0]))))

    @property
    def plain(self) -> dict[str, str]:
        """The mapping of patterns to formats."""
        return dict(self.value)

    def __str__(self) -> str:
        return "exceptions " + " ".join(f"{pattern}:{format_}" for pattern, format_ in self.value)

    def merged(self, other: Self) -> Self | None:
        """Combine the patterns of both; None if a pattern has different formats in the two."""
        both = self.plain | other.plain
        agree = all(both[pattern] == format_ for pattern, format_ in self.value)
        return self.parse(both) if agree else None

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe in which everything is in fp32."""
        if whole.product_format not in ("fp32", "tf32"):
            return None
        return (
            f"exceptions={self.plain!r} keeps parts of a model out of a half format, but "
            "everything is in fp32; write autocast='fp16' or params='fp16', or leave exceptions out"
        )

    def formats(self) -> Iterable[str]:
        """Return the formats of the patterns."""
        return tuple(format_ for _, format_ in self.value)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Change the formats in which the matching modules and operators compute."""
        from halfstep.mechanisms.exceptions.technique import FormatExceptions

        del seed
        params = whole.get("params")
        half = None if params in (None, "fp32") else params
        yield FormatExceptions(self.plain, half_params=half, own_formats=whole.own_formats)

    def own_formats(self, model: nn.Module) -> Mapping[nn.Module, str]:
        """Return the modules that a pattern matches and all modules inside them, with formats."""
        from halfstep.mechanisms.exceptions.technique import matching

        return {
            module: format_
            for pattern, format_ in self.value
            for matched in matching(model, pattern)
            for module in matched.modules()
        }


_FORMATS = ("fp32", "fp16", "bf16")
