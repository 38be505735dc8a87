"""Static facts: the environment of a program, its models, optimizers and scalers."""

from __future__ import annotations

from dataclasses import field

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.formats.limits import HALVES
from halfstep.lazy_dataclass import dataclass

Fact = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of the program.

    Attributes:
        torch: Version of torch.
        devices: Types of the devices that parameters were on.
        processes: Number of processes that train together.
        tf32: Whether fp32 products may be computed in TF32.
        hold_back: Whether doctor makes fused optimizers skip bad steps.
        scaler_off: Whether a gradient scaler for CUDA is off because there is no GPU.
        autocast_off: Whether an autocast for CUDA is off because there is no GPU.
        autocast_on: Whether the program made an autocast to a half format that has an effect.
        graphs: Number of CUDA graphs that the program captured.
        framework: The package that makes the first step for the program, such as "lightning"; ""
            if the program itself makes it.
    """

    torch: str = ""
    devices: tuple[str, ...] = ()
    processes: int = 1
    tf32: bool = False
    hold_back: bool = False
    scaler_off: bool = False
    autocast_off: bool = False
    autocast_on: bool = False
    graphs: int = 0
    framework: str = ""


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """A module that rules examine: a norm, a loss, a recurrent cell.

    Attributes:
        path: Name of the module in the model.
        kind: Class of the module.
        settings: Settings of the module ("eps", "momentum", ...) and the formats of its tensors.
    """

    path: str
    kind: str
    settings: dict[str, Fact]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about a model or loss that the loop called, read at the end of watching.

    For a trained model, `formats`, `first_half`, `modules` and `positions` are those at the first
    step of its optimizer.

    Attributes:
        kind: Class of the model.
        formats: Number of trainable parameters, by format ("fp16", "fp32").
        first_half: Name of the first parameter in fp16 or bf16; None without one.
        modules: The norms and losses in the model.
        bad_statistics: Names of buffers with inf or NaN that were finite before training, such as
            running means; masks of -inf are left out.
        bad_parameters: Names of parameters with inf or NaN.
        forgotten: Names of trainable parameters that received gradients but have no optimizer.
        unchanged: Number of these parameters whose norm is still that before the first step, or
            that in the first half of the steps, while optimizers have newer copies of them, which
            belong to no model.
        never_reached: Names of trainable parameters that have an optimizer but never received a
            gradient.
        compiled: Whether the model runs through torch.compile.
        calls: Number of the loop's calls of the model.
        training_calls: Number of these calls with gradients enabled.
        positions: Names of half-precision buffers of ascending whole numbers, some of which
            rounding has made equal.
        optimizers: Numbers of the optimizers that update its parameters.
    """

    kind: str
    formats: dict[str, int] = field(default_factory=dict)
    first_half: str | None = None
    modules: tuple[ModuleFacts, ...] = ()
    bad_statistics: tuple[str, ...] = ()
    bad_parameters: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    unchanged: int = 0
    never_reached: tuple[str, ...] = ()
    compiled: bool = False
    calls: int = 0
    training_calls: int = 0
    positions: tuple[str, ...] = ()
    optimizers: tuple[int, ...] = ()

    @property
    def half_statistics(self) -> list[ModuleFacts]:
        """The norms that keep their running statistics in half precision."""
        return [each for each in self.modules if each.settings.get("running_var") in HALVES]

    @property
    def overflowed_variances(self) -> list[str]:
        """Names of running variances in half precision that are not finite."""
        names = [f"{each.path}.running_var" for each in self.half_statistics]
        return [each for each in names if each in self.bad_statistics]


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """Facts about an optimizer, read at the end of watching.

    Attributes:
        kind: Class of the optimizer.
        formats: Number of its parameters, by format.
        settings: Numbers of its first parameter group ("lr", "eps", "weight_decay", "beta2", ...),
            and "computes_in_fp32" if its class computes so, whatever the format of parameters.
        largest_rate: The largest learning rate of its parameter groups; None if one is unknown.
        largest_decay: The largest weight decay of its parameter groups.
        state_formats: Formats of its state tensors, by name of the state.
        shared: Number of its parameters that another optimizer or a second group also has.
        foreign: Number of its parameters that belong to no observed model.
        replaced: Number of these that belonged to an observed model at the optimizer's first step.
        without_gradient: Number of its parameters that never had a gradient.
        stale: Number of its parameters that never had a gradient, require gradients, and belong to
            no observed model.
        skips_itself: Whether it reads found_inf and skips steps on the device ("fused").
        bad_state: Names of states with inf or NaN, of an optimizer that skips steps itself.
        resumed_at: Step number in the state that was loaded; 0 for a new optimizer.
        resumed_in: Number of iterations before its state was loaded.
        steps: Number of calls of its `step`; a scaler that skips a step does not call it.
        skipped: Number of steps that a scaler, or halfstep's engine, skipped.
        site: The line that created it.
        made_by: Source text of the statement that created it; "" if unknown.
        arguments: Names of the arguments of its class, in order; empty if unknown.
    """

    kind: str
    formats: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Fact] = field(default_factory=dict)
    largest_rate: float | None = None
    largest_decay: float = 0.0
    state_formats: dict[str, str] = field(default_factory=dict)
    shared: int = 0
    foreign: int = 0
    replaced: int = 0
    without_gradient: int = 0
    stale: int = 0
    skips_itself: bool = False
    bad_state: tuple[str, ...] = ()
    resumed_at: int = 0
    resumed_in: int = 0
    steps: int = 0
    skipped: int = 0
    site: Site | None = None
    made_by: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def trains_no_model(self) -> bool:
        """Whether none of its parameters belongs to an observed model, as in an attack."""
        return self.foreign >= sum(self.formats.values())


@dataclass(frozen=True, slots=True)
class ScalerFacts:
    """Facts about a gradient scaler, read at the end of watching.

    Attributes:
        settings: Its init_scale, growth_factor, backoff_factor and growth_interval.
        scale: Its last loss scale; None if it was never used.
        restored: Whether a state was loaded into it.
        created_in: Number of the iteration in which it was created, from 0.
        site: The line that created it.
    """

    settings: dict[str, float]
    scale: float | None
    restored: bool
    created_in: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Static:
    """The facts about all models, optimizers and scalers, in order of appearance."""

    models: tuple[ModelFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    scalers: tuple[ScalerFacts, ...] = ()

    def optimizer(self, number: int) -> OptimizerFacts:
        """Return the facts about an optimizer; none about that of a loop without one."""
        return self.optimizers[number] if number >= 0 else OptimizerFacts("")

    def may_copy(self, count: int) -> bool:
        """Return whether an optimizer may update fp32 copies of so many parameters of a model."""
        return any(each.foreign == count and not each.stale for each in self.optimizers)
