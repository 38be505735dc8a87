"""`Part`, the base class of the fields of a recipe.

A part is a field that is set. It holds the field's value and all knowledge about the field: the
allowed values, contradictions with other fields, how a device runs it, how its technique is built,
and the ways of training in which it does not work. The methods return None or nothing by default; a
field overrides those that it needs. `Recipe` calls the methods of its parts in turn and knows no
part by name.

Defining a subclass of `Part` adds the field to all recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from halfstep.errors import closest

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from halfstep.kernels.hardware import Means
    from halfstep.loss_scale import LossScale
    from halfstep.mechanisms.technique import Technique

Use = Literal[
    "fully_shard",
    "data_parallel",
    "replica_threads",
    "zero_optimizer",
    "closure",
    "lazy_parameters",
    "script_modules",
]
"""Ways of training that some fields exclude.

In this order: FSDP2, the engine's DataParallel, torch's own DataParallel, a
`ZeroRedundancyOptimizer`, an optimizer that evaluates the loss in a closure, lazy parameters (which
have no values yet), and modules compiled by TorchScript.
"""


@dataclass(frozen=True, slots=True)
class ExplainedLayer:
    """What becomes of a linear or convolution layer under a recipe, on a device.

    Attributes:
        name: Its name in the model.
        inputs: Features, or channels of a group.
        outputs: Features, or channels of a group.
        how: "native", "rehearsed" or "left out".
        reason: From how many samples on it is native, or why it is left out; "" for a rehearsal.
        fewest: From how many samples on it is native; None if it never is.
        samples: Its samples (tokens or pixels); None if unknown.
        gain: The time of its products without the part over that with it; None if unknown.
        source: Whether `gain` is "measured" or "predicted"; "" if it is unknown.
    """

    name: str
    inputs: int
    outputs: int
    how: Literal["native", "rehearsed", "left out"]
    reason: str = ""
    fewest: int | None = None
    samples: int | None = None
    gain: float | None = None
    source: str = ""

    @property
    def computes(self) -> Literal["native", "rehearsed", "left out"]:
        """How the layer computes with these samples."""
        if self.fewest is None or self.samples is None or self.samples >= self.fewest:
            return self.how
        return "left out"


Samples = Mapping[str, int] | int | None
"""The samples (tokens or pixels) of each layer by its name, or those of every layer."""


class Datasheet(Protocol):
    """A GPU that need not be here: its name, and its rates in TFLOP/s and GB/s."""

    @property
    def key(self) -> str:
        """The name in the table of GPUs."""

    @property
    def architecture(self) -> str:
        """The architecture, such as "hopper"."""

    @property
    def fp16(self) -> float:
        """The peak rate of half-precision products."""

    @property
    def fp8(self) -> float | None:
        """The peak rate of FP8 products; None without units for FP8."""

    @property
    def bandwidth(self) -> float:
        """The bandwidth of the memory."""


class CountedProduct(NamedTuple):
    """A product that a GPU would run natively in a narrow format.

    Attributes:
        m: Rows of the result.
        n: Columns of the result.
        k: Length of the sum.
        size: Bytes of an element of the result.
        gain: How many times as fast it is as in bf16, with the casts around it.
    """

    m: int
    n: int
    k: int
    size: int
    gain: float


Count = Callable[[CountedProduct], None]

PARTS: dict[str, type[Part]] = {}
"""The class of each field that a recipe may set, by the field's name."""


class Whole(Protocol):
    """The interface of a recipe that its parts may use."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The fields that are set."""

    @property
    def product_format(self) -> str:
        """The format of matrix products and convolutions in the forward pass."""

    def get(self, field: str) -> Any:
        """Return the value of a field; None if it is not set."""

    def own_formats(self, model: nn.Module) -> dict[nn.Module, str]:
        """Return the modules of `model` with a format of their own, and that format."""


@dataclass(frozen=True)
class Part:
    """One field of a recipe that is set.

    Attributes:
        value: The value of the field.
        field: The name of the field in a recipe.
        place: Sort key of the field in a recipe. If two parts answer the same question, the answer
            of the part with the higher place counts.
        purpose: What the field decides, as one sentence.
        allowed: The allowed values, each with its meaning.
    """

    value: Any

    field: ClassVar[str]
    place: ClassVar[int]
    purpose: ClassVar[str]
    allowed: ClassVar[Mapping[Any, str]]

    traceable: ClassVar[bool] = True
    """Whether a GPU runs the same operators as a CPU, so that a trace on a CPU tells the cost."""

    former_field: ClassVar[str | None] = None
    """A former name of the field, which recipes may still use."""

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        if not abstract:
            PARTS[cls.field] = cls

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse a value as users write it.

        Raises:
            ValueError: If the value is not allowed; the message lists the allowed values.
        """
        if given not in cls.allowed:
            options = ", ".join(map(repr, cls.allowed))
            near = closest(given, map(str, cls.allowed))
            raise ValueError(f"recipe field {cls.field} is {given!r}; allowed: {options}{near}")
        return cls(given)

    @property
    def plain(self) -> Any:
        """The value as plain data for JSON and YAML."""
        return self.value

    def __str__(self) -> str:
        return f"{self.field} {self.value}"

    def merged(self, other: Self) -> Self | None:
        """Combine with the same field of another recipe; return None if the two disagree."""
        return self if self == other else None

    def contradiction(self, whole: Whole) -> str | None:
        """Return why this part contradicts the other parts and what to write instead, or None."""
        del whole
        return None

    def product_format(self) -> tuple[int, str] | None:
        """Return the precedence and the format of products in the forward pass, or None.

        The format with the highest precedence among all parts applies.
        """
        return None

    def forward_format(self) -> str | None:
        """Return the format of the autocast region around the forward pass, or None."""
        return None

    def formats(self) -> Iterable[str]:
        """Return all formats in which this part causes tensors to be stored or computed."""
        return ()

    def means(self, device: torch.device) -> Means | None:
        """Return how `device` runs this part; None if the part does not depend on the hardware.

        Raises:
            ValueError: If the device does not exist.
        """
        del device
        return None

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Build the techniques that implement this part; import them here, not with the module.

        Args:
            whole: The recipe.
            seed: Seed of a technique's random numbers.
        """
        del whole, seed
        return ()

    def explained(
        self, model: nn.Module, whole: Whole, device: str, samples: Samples = None
    ) -> list[ExplainedLayer] | None:
        """Return what becomes of the layers of a model; None if the part changes no layers.

        Args:
            model: The model, which is not changed.
            whole: The recipe.
            device: A device, or the name of a GPU that need not be here.
            samples: The samples of the layers; None if unknown.

        Raises:
            ValueError: If the device is unknown.
        """
        del model, whole, device, samples
        return None

    def untraceable_on(self, gpu: Datasheet) -> str:
        """Return why no trace on a CPU tells what this part costs on a GPU; "" if one does."""
        del gpu
        if self.traceable:
            return ""
        return f"a CPU and a GPU run different operators for this part of the recipe: {self}"

    def traced_on(self, gpu: Datasheet, count: Count) -> Part:
        """Return the part to trace on tensors without values, for a GPU that has a trace.

        Args:
            gpu: The GPU.
            count: Called with each product that a CPU does not run as the GPU does.
        """
        del gpu, count
        return self

    def own_formats(self, model: nn.Module) -> Mapping[nn.Module, str]:
        """Return the modules of `model` to which this part gives a format of their own, with it."""
        del model
        return {}

    def gradient_format(self) -> str | None:
        """Return the format of `.grad` of half parameters, or None."""
        return None

    def optimizer_format(self) -> str | None:
        """Return the format in which the optimizer computes its updates, or None."""
        return None

    def keeps_small_updates(self) -> bool:
        """Tell whether updates smaller than half an ulp of the weight take effect over time."""
        return False

    def reduction(self) -> str | None:
        """Return the format in which processes sum gradients ("own": that of each), or None."""
        return None

    def sharding(self, whole: Whole) -> Mapping[str, str]:
        """Return formats under FSDP2, by the keys of `Recipe.sharding`."""
        del whole
        return {}

    def scaling(self) -> LossScale | None:
        """Return the settings of the loss scale, or None."""
        return None

    def refuses(self, use: Use, whole: Whole) -> str | None:
        """Return why this part does not work with the way of training `use`; None if it works."""
        del use, whole
        return None


def needs_half_params(part: Part, whole: Whole) -> str | None:
    """Return a refusal of a part that needs half parameters if the recipe has none, else None."""
    params = whole.get("params")
    if params not in (None, "fp32"):
        return None
    said = repr(params) if params else "not set"
    return (
        f"{part.field}={part.value!r} needs parameters in a half format, but params is {said}; "
        f"write params='fp16' or leave {part.field} out"
    )
