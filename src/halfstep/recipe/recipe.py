"""A recipe: the number formats of one training step, as pure data.

A recipe consists of a name and the parts that are set. Its methods loop over the parts. All
knowledge about a single field is in that field's file in `parts/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from halfstep.errors import refuse_unknown
from halfstep.mechanisms import PARTS, Part, Use
from halfstep.recipe.resolution import Resolution, Support

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from halfstep.loss_scale import LossScale
    from halfstep.mechanisms import Count, Datasheet, ExplainedLayer, Samples
    from halfstep.mechanisms.technique import Technique


_Answer = TypeVar("_Answer")

NAMES: list[str] = []
"""Names of recipes, in the order in which the name of a composed recipe lists them.

`table.py` fills this list.
"""


@dataclass(frozen=True, init=False)
class Recipe:
    """The number formats of one training step. A field that is not set changes nothing.

    ```python
    Recipe(name="o2-bf16", params="bf16", norms="fp32", master_weights=True)
    ```

    `halfstep recipes --fields` lists the fields and their values. Each field can be read as an
    attribute, which is None if the field is not set.

    Args:
        name: The recipe's name in tables.
        parts: Values of fields as `Part` objects, instead of plain values in `settings`.
        settings: Values of fields by name. The value `None` unsets a field, even if `parts` sets
            this field.

    Raises:
        ValueError: If a field or its value does not exist, or if fields contradict each other.
            The message says what to write instead.
    """

    name: str
    parts: tuple[Part, ...]

    def __init__(
        self, name: str = "custom", *, parts: Iterable[Part] = (), **settings: Any
    ) -> None:
        former = {part.former_field: field for field, part in PARTS.items() if part.former_field}
        settings = {former.get(field, field): given for field, given in settings.items()}
        refuse_unknown("recipe field", settings, list(PARTS))
        chosen = {part.field: part for part in parts}
        for field, given in settings.items():
            if given is None:
                chosen.pop(field, None)
            else:
                chosen[field] = PARTS[field].parse(given)
        object.__setattr__(self, "name", name)
        in_order = sorted(chosen.values(), key=lambda part: part.place)
        object.__setattr__(self, "parts", tuple(in_order))
        for part in in_order:
            reason = part.contradiction(self)
            if reason:
                raise ValueError(f"recipe {name!r} contradicts itself: {reason}")

    def __getattr__(self, field: str) -> Any:
        if field not in PARTS:
            raise AttributeError(f"a recipe has no field {field!r}; it has {', '.join(PARTS)}")
        return self.get(field)

    def get(self, field: str) -> Any:
        """Return the value of a field, or None if it is not set."""
        return next((part.value for part in self.parts if part.field == field), None)

    def settings(self) -> dict[str, Any]:
        """Return plain data for JSON and YAML: the fields that are set, without the name."""
        return {part.field: part.plain for part in self.parts}

    def __add__(self, other: Recipe) -> Recipe:
        """Compose two recipes.

        Raises:
            ValueError: If both recipes set the same field, and the two values cannot be combined.
        """
        composed = {part.field: part for part in (*self.parts, *other.parts)}
        mine = {part.field: part for part in self.parts}
        for part in other.parts:
            if part.field in mine:
                both = mine[part.field].merged(part)
                if both is None:
                    raise ValueError(
                        f"recipes {self.name!r} and {other.name!r} disagree on {part.field}: "
                        f"{mine[part.field].value!s} and {part.value!s}; leave one of them out"
                    )
                composed[part.field] = both
        names = {*self.name.split("+"), *other.name.split("+")}
        return Recipe("+".join(sorted(names, key=_rank)), parts=composed.values())

    def __str__(self) -> str:
        said = ", ".join(map(str, self.parts))
        return f"{self.name} ({said})" if said else self.name

    def resolve(self, device: str | torch.device) -> Resolution:
        """Return how a device runs the fields of the recipe that depend on hardware, and why.

        The device runs such a field natively, rehearses (emulates) it, or refuses it.

        ```python
        print(recipe("fp8").resolve("cuda"))
        ```

        Raises:
            ValueError: If the device has no valid name, or a field needs a GPU that does not exist.
        """
        import torch

        try:
            where = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device is {device!r}; allowed: cpu, cuda, cuda:1") from error
        asked = [(part, part.means(where)) for part in self.parts]
        supports = [Support(str(part), *means) for part, means in asked if means is not None]
        return Resolution(self.name, str(where), tuple(supports))

    def explained(
        self, model: nn.Module, device: str, samples: Samples = None
    ) -> list[ExplainedLayer]:
        """Return what would become of each linear and convolution layer of a model.

        Args:
            model: The model, which is not changed.
            device: A device, or a GPU that need not be here: "cuda", "h200".
            samples: The samples (tokens or pixels) of each layer by its name, or those of every
                layer; None if unknown.

        Raises:
            ValueError: If the device is unknown, or no part of the recipe changes layers.
        """
        for part in self.parts:
            layers = part.explained(model, self, device, samples)
            if layers is not None:
                return layers
        raise ValueError(f"recipe {self.name!r} changes no layers, as fp8, mxfp8 and nvfp4 do")

    @property
    def product_format(self) -> str:
        """The format of matrix products and convolutions in the forward pass."""
        return self._product_formats[0]

    @property
    def format_of_left_out(self) -> str:
        """The format of products in layers that a technique of the recipe leaves out."""
        return self._product_formats[1]

    @property
    def _product_formats(self) -> list[str]:
        """The formats of products, from the one with the highest precedence; at least two."""
        ranked = [part.product_format() for part in self.parts]
        ordered = sorted((each for each in ranked if each is not None), reverse=True)
        return [*(format_ for _, format_ in ordered), "fp32", "fp32"]

    @property
    def untraceable(self) -> list[str]:
        """The fields, as text, for which a CPU runs different operators from a GPU."""
        return [str(part) for part in self.parts if not part.traceable]

    def untraceable_on(self, gpu: Datasheet) -> str:
        """Return why no trace on a CPU tells the cost on a GPU; "" if one does."""
        reasons = (part.untraceable_on(gpu) for part in self.parts)
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    def traced_on(self, gpu: Datasheet, count: Count) -> Recipe:
        """Return the recipe to trace on tensors without values, for a GPU that need not be here.

        Args:
            gpu: The GPU.
            count: Called with each product that a CPU does not run as the GPU does.
        """
        return Recipe(self.name, parts=[part.traced_on(gpu, count) for part in self.parts])

    @property
    def forward_format(self) -> str | None:
        """The autocast format, or None if the forward pass needs no autocast."""
        return _last(part.forward_format() for part in self.parts)

    @property
    def overflows_early(self) -> bool:
        """Whether anything is stored or computed in fp16, whose largest value is 65504."""
        return any("fp16" in part.formats() for part in self.parts)

    @property
    def gradient_format(self) -> str | None:
        """The format of `.grad` for half-precision parameters."""
        return _last(part.gradient_format() for part in self.parts)

    @property
    def optimizer_format(self) -> str:
        """The format in which the optimizer computes its updates."""
        return _last(part.optimizer_format() for part in self.parts) or "fp32"

    @property
    def keeps_small_updates(self) -> bool:
        """Whether weight updates below half an ulp of a half-precision parameter take effect."""
        return any(part.keeps_small_updates() for part in self.parts)

    @property
    def reduction(self) -> str | None:
        """The format in which processes sum gradients; "own" for the format of each gradient.

        None leaves the reduction of gradients to `DistributedDataParallel`.
        """
        return _last(part.reduction() for part in self.parts)

    @property
    def scaling(self) -> LossScale | None:
        """The loss scale, or None if the loss is not scaled."""
        return _last(part.scaling() for part in self.parts)

    @property
    def lacks_loss_scale(self) -> bool:
        """Whether small gradients become 0: products are in fp16, and the loss is not scaled."""
        return self.product_format == "fp16" and self.scaling is None

    @property
    def sharding(self) -> dict[str, str]:
        """The formats to set under FSDP2; an absent key leaves the format to FSDP2 or the model.

        Keys: "compute" (parameters gathered for computation), "buffers", "reduce" (sums of
        gradients) and "outputs" (outputs of the outermost module).
        """
        found: dict[str, str] = {}
        for part in self.parts:
            found |= part.sharding(self)
        return found

    def own_formats(self, model: nn.Module) -> dict[nn.Module, str]:
        """Return the modules with a format of their own, such as fp32 norms, and that format."""
        found: dict[nn.Module, str] = {}
        for part in self.parts:
            found |= part.own_formats(model)
        return found

    def refusal(self, use: Use) -> str | None:
        """Return why this recipe does not work with `use`, such as FSDP2; None if it works."""
        reasons = (part.refuses(use, self) for part in self.parts)
        return next((reason for reason in reasons if reason), None)

    def techniques(self, *, seed: int = 0) -> list[Technique]:
        """Build the techniques that implement the recipe, in the order in which they are applied.

        Args:
            seed: Seed of the random numbers for stochastic rounding.
        """
        found = [each for part in self.parts for each in part.techniques(self, seed=seed)]
        return sorted(found, key=lambda technique: technique.stage)


def _rank(name: str) -> tuple[int, str]:
    """Return a sort key: named recipes in the order of the table, then other names by alphabet."""
    return (NAMES.index(name) if name in NAMES else len(NAMES), name)


def _last(answers: Iterable[_Answer | None]) -> _Answer | None:
    """Return the last answer that is not None: that of the part with the highest `place`."""
    found: _Answer | None = None
    for answer in answers:
        found = found if answer is None else answer
    return found
