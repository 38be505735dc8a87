"""What is so whatever the numbers are: where a program ran, its models, optimizers and scalers."""

from __future__ import annotations

from dataclasses import dataclass, field

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time

Fact = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the program ran.

    Attributes:
        torch: Version of torch.
        devices: Types of device that parameters were on.
        processes: How many train together.
        tf32: Whether fp32 products may be computed in TF32.
        hold_back: Whether doctor was to hold bad steps back.
        scaler_off: Whether a gradient scaler for CUDA was made where there is none, and is off.
    """

    torch: str = ""
    devices: tuple[str, ...] = ()
    processes: int = 1
    tf32: bool = False
    hold_back: bool = False
    scaler_off: bool = False


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """One module whose kind or format matters: a norm, a loss, a recurrent cell.

    Attributes:
        path: Its name in the model.
        kind: Its class.
        settings: What it was made with ("eps", "momentum", ...), and formats of its tensors.
    """

    path: str
    kind: str
    settings: dict[str, Fact]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model or loss that the loop called, as it stood when watching ended.

    Attributes:
        kind: Its class.
        formats: Number of trainable parameters by format ("fp16", "fp32").
        first_half: Name of the first parameter in fp16 or bf16; None without one.
        modules: Its norms and losses.
        bad_buffers: Names of floating-point buffers that hold inf or NaN.
        bad_parameters: Names of parameters that hold inf or NaN.
        forgotten: Trainable parameters that received gradients and belong to no optimizer.
        never_reached: Trainable parameters of an optimizer that never received a gradient.
        compiled: Whether it runs through torch.compile.
        calls: How often the loop called it.
        training_calls: How often of those gradients were recorded.
        positions: Half buffers that count up, and count some numbers twice.
    """

    kind: str
    formats: dict[str, int] = field(default_factory=dict)
    first_half: str | None = None
    modules: tuple[ModuleFacts, ...] = ()
    bad_buffers: tuple[str, ...] = ()
    bad_parameters: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    never_reached: tuple[str, ...] = ()
    compiled: bool = False
    calls: int = 0
    training_calls: int = 0
    positions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer as it stood when watching ended.

    Attributes:
        kind: Its class.
        formats: Number of its parameters by format.
        settings: Numbers of its first parameter group ("lr", "eps", "weight_decay", "beta2", ...).
        state_formats: Formats of its state tensors, by name of the state.
        shared: How many of its parameters another optimizer, or a second group, has too.
        foreign: How many of its parameters no model that was seen has.
        without_gradient: How many of its parameters have never had a gradient.
        stale: How many of those may have one, and are in no model that was seen.
        skips_itself: Whether it takes found_inf and skips on the device ("fused").
        resumed_at: The step that its state began at; 0 for a new one.
        resumed_in: The iterations that had been made when its state was loaded.
        steps: How often it stepped.
        skipped: How often a scaler kept it from stepping.
        site: Where it was made.
        made_by: The statement that made it; "" where it is unknown.
    """

    kind: str
    formats: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Fact] = field(default_factory=dict)
    state_formats: dict[str, str] = field(default_factory=dict)
    shared: int = 0
    foreign: int = 0
    without_gradient: int = 0
    stale: int = 0
    skips_itself: bool = False
    resumed_at: int = 0
    resumed_in: int = 0
    steps: int = 0
    skipped: int = 0
    site: Site | None = None
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    """A GradScaler.

    Attributes:
        settings: Its init_scale, growth_factor, backoff_factor, growth_interval.
        scale: The scale that it ended with; None when never used.
        restored: Whether a state was loaded into it.
        created_in: The iteration that it was made in.
        site: Where it was made.
    """

    settings: dict[str, float]
    scale: float | None
    restored: bool
    created_in: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Static:
    """What is so whatever the numbers are."""

    models: tuple[ModelFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    scalers: tuple[ScalerFacts, ...] = ()
