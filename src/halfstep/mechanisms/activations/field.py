"""Fields `activations...`: the bits per element of tensors that autograd saves for the backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from halfstep.mechanisms.part import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from halfstep.kernels.hardware import Means
    from halfstep.mechanisms.part import Whole
    from halfstep.mechanisms.technique import Technique


class Activations(Part):
    """Compresses saved activations."""

    field = "activations"
    place = 120
    traceable = False
    purpose = (
        "Bits per element of the activations that are saved for the backward pass, with stochastic "
        "rounding; saved without compression if not set."
    )
    allowed = {
        2: "2 bits per element, with very noisy gradients",
        3: "3 bits per element",
        4: "4 bits per element",
        8: "8 bits per element, with very little noise",
        "{'*': 2, 'layer4.*': 8, 'head': 'whole'}": "by module; 'whole': without "
        "compression; the longest match applies",
    }

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse a number of bits, or a mapping of module patterns to bits or "whole"."""
        pairs = given
        if isinstance(given, int) and not isinstance(given, bool):
            pairs = {"*": given}
        elif isinstance(given, tuple) and all(isinstance(pair, tuple) for pair in given):
            pairs = dict(given)
        if not isinstance(pairs, Mapping) or not pairs:
            raise ValueError(
                f"recipe field activations is {given!r}; allowed: 2, 3, 4, 8 or a mapping such as "
                "{'*': 2, 'layer4.*': 8, 'head': 'whole'}"
            )
        for pattern, bits in pairs.items():
            if not isinstance(pattern, str) or not pattern:
                raise ValueError(
                    f"activations names {pattern!r}; allowed: a module ('head', 'blocks.*.attn') "
                    "or '*' for all"
                )
            if bits not in _BITS or isinstance(bits, bool):
                raise ValueError(
                    f"activations keeps {pattern!r} in {bits!r} bits; allowed: "
                    f"{', '.join(map(repr, _BITS))}"
                )
        return cls(tuple(sorted(pairs.items(), key=lambda pair: (len(pair[0]), pair[0]))))

    @property
    def plain(self) -> Any:
        """The number of bits if it is the same for all modules, else the mapping of patterns."""
        pairs = dict(self.value)
        return pairs["*"] if set(pairs) == {"*"} else pairs

    def __str__(self) -> str:
        said = self.plain
        if isinstance(said, int):
            return f"activations {said} bits"
        return "activations " + " ".join(f"{pattern}:{bits}" for pattern, bits in self.value)

    def merged(self, other: Self) -> Self | None:
        """Combine the patterns of both; None if a pattern has different bits in the two."""
        both = dict(self.value) | dict(other.value)
        agree = all(both[pattern] == bits for pattern, bits in self.value)
        return self.parse(both) if agree else None

    def means(self, device: torch.device) -> Means | None:
        """Packed by kernels of halfstep, where it has them."""
        return _packed(device)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Compress tensors that autograd saves, unless `ActivationBudget` does so for all."""
        from halfstep.mechanisms.activations.technique import CompressedActivations

        if whole.get("activation_budget") is None:
            yield CompressedActivations(self.layers, group=_group(whole), seed=seed)

    @property
    def layers(self) -> dict[str, int | None]:
        """Patterns of module names, and bits per element; None for "whole" (no compression)."""
        return {pattern: None if bits == "whole" else bits for pattern, bits in self.value}


class ActivationBudget(Part):
    """Chooses the bits of each module by its contribution to the noise of the gradient."""

    field = "activation_budget"
    place = 121
    traceable = False
    purpose = (
        "Share of autograd's saved bytes to keep. The bits of each module are chosen to minimize "
        "gradient noise, which the first step measures."
    )
    allowed = {
        0.2: "a fifth of the bytes; any number between 0 and 1",
    }

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse a number between 0 and 1."""
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if not number or not 0 < given < 1:
            raise ValueError(
                f"recipe field activation_budget is {given!r}; allowed: a number between 0 and 1, "
                "such as 0.2, a fifth of the bytes"
            )
        return cls(float(given))

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe in which `activations` already sets the bits of all modules."""
        if "*" in dict(whole.get("activations") or ()):
            return (
                "activations gives the bits of every module by '*', but activation_budget="
                f"{self.value} chooses them; leave one of them out"
            )
        return None

    def means(self, device: torch.device) -> Means | None:
        """Packed by kernels of halfstep, where it has them."""
        return _packed(device)

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Compress tensors that autograd saves, with bits chosen from measured sensitivities."""
        from halfstep.mechanisms.activations.budget import BudgetedActivations

        given = whole.get("activations")
        layers = Activations(given).layers if given else {}
        yield BudgetedActivations(self.value, layers, group=_group(whole), seed=seed)


class ActivationGroup(Part):
    """Sets how many activations share one minimum and one quantization step."""

    field = "activation_group"
    place = 122
    purpose = "Number of activations that share a minimum and a quantization step; 256 if not set."
    allowed = {
        64: "less noise, 0.5 extra bits per element",
        128: "0.25 extra bits per element",
        256: "0.125 extra bits per element, as in ActNN",
        512: "0.06 extra bits per element",
        1024: "more noise, 0.03 extra bits per element",
    }

    def contradiction(self, whole: Whole) -> str | None:
        """Refuse a recipe without compressed activations."""
        if whole.get("activations") is None and whole.get("activation_budget") is None:
            return (
                f"activation_group={self.value!r} groups compressed activations, but activations "
                "is not set; write activations=4, or leave activation_group out"
            )
        return None


def _group(whole: Whole) -> int:
    return whole.get("activation_group") or _GROUP


_BITS = (2, 3, 4, 8, "whole")
_GROUP = 256


def _packed(device: torch.device) -> Means:
    """Return how `device` packs tensors into a few bits per element."""
    from halfstep.kernels.hardware import Means, refused

    kernels = {
        "cuda": "packed by Triton kernels",
        "cpu": "packed by a C kernel, compiled when it is first needed",
    }
    return Means("native", kernels[device.type]) if device.type in kernels else refused(device)
