"""What is written in the place of amp: lines on `halfstep.Engine`, or on `torch.amp`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from halfstep.migrate.layout import call_text
from halfstep.migrate.names import argument, code, fresh
from halfstep.migrate.recipes import (
    FROM_APEX,
    NO_MIXED_PRECISION,
    SCALES,
    RecipeArgument,
    recipe_argument,
)

if TYPE_CHECKING:
    import libcst as cst

    from halfstep.migrate.program import Initialize, Program

MASTERS = '[param for group in {}.param_groups for param in group["params"]]'
O2_O3 = (
    "{} keeps its parameters in fp16, for which torch.amp has nothing; migrate --to halfstep, or "
    "write O1"
)


class Target(Protocol):
    """How each thing that amp does is written.

    Attributes:
        object: The name of what takes amp's place.
        called: What it is.
        clips_itself: Whether gradients are clipped by what takes amp's place.
        zeroes_itself: Whether gradients are dropped by the step.
    """

    object: str
    called: str
    clips_itself: bool
    zeroes_itself: bool
    imports: dict[str, None]
    preamble: dict[str, None]

    def refusal(self, recipe: RecipeArgument) -> str | None:
        """Say why a program cannot be translated at all, or None."""

    def setup(self, given: Initialize, recipe: RecipeArgument, *, on: bool) -> str:
        """Write what takes the place of `amp.initialize`; `on` is False where it was not called."""

    def reasons(self, recipe: RecipeArgument) -> list[str]:
        """Say what of the settings could not be translated."""

    def scales(self, losses: str) -> str:
        """Write the loss scales of so many losses in the format of `amp.state_dict()`."""

    def autocast(self) -> str:
        """Write the head of a `with` around a forward pass."""

    def backward_text(
        self, loss: str, options: list[str], optimizers: str, loss_id: str | None
    ) -> str:
        """Write a backward; `optimizers` is "" where it reaches all."""

    def step(self, optimizer: str) -> str:
        """Write a step; `optimizer` is "" for all."""


@dataclass
class EngineTarget:
    """`halfstep.Engine`: one object that scales, clips, steps and zeroes."""

    program: Program
    object: str
    clip: dict[str, str] = field(default_factory=dict)
    called = "the Engine"
    clips_itself = True
    zeroes_itself = True
    imports: dict[str, None] = field(default_factory=dict)
    preamble: dict[str, None] = field(default_factory=dict)

    def refusal(self, recipe: RecipeArgument) -> str | None:
        """Refuse nothing: every level has a recipe."""
        del recipe
        return None

    def setup(self, given: Initialize, recipe: RecipeArgument, *, on: bool) -> str:
        """Write the engine."""
        self.imports["from halfstep import Engine"] = None
        if recipe.needs_function and on:
            self.preamble[FROM_APEX] = None
        models = code_of_argument(given.call, "models", 0)
        text = recipe.text if on else NO_MIXED_PRECISION
        extra = [f"{name}={limit}" for name, limit in self.clip.items()]
        arguments = [models, given.optimizer_text, f"recipe={text}", *extra]
        return call_text(f"{self.object} = Engine", arguments)

    def reasons(self, recipe: RecipeArgument) -> list[str]:
        """Return those of the recipe."""
        return recipe.reasons

    def scales(self, losses: str) -> str:
        """Write a call of a function that goes into the program."""
        self.preamble[SCALES] = None
        return f"loss_scales_like_apex({self.object}, {losses})"

    def autocast(self) -> str:
        """Write the engine's own context."""
        return f"with {self.object}.autocast():"

    def backward_text(
        self, loss: str, options: list[str], optimizers: str, loss_id: str | None
    ) -> str:
        """Write the engine's backward."""
        if optimizers:
            options = [f"optimizers={optimizers}", *options]
        if loss_id is not None:
            options = [*options, f"loss_id={loss_id}"]
        return f"{self.object}.backward({', '.join([loss, *options])})"

    def step(self, optimizer: str) -> str:
        """Write the engine's step."""
        return f"{self.object}.step({f'optimizers=[{optimizer}]' if optimizer else ''})"


@dataclass
class TorchTarget:
    """`torch.autocast` and one `torch.amp.GradScaler`."""

    program: Program
    object: str
    device: str
    always_on: bool
    called = "the GradScaler"
    clips_itself = False
    zeroes_itself = False
    imports: dict[str, None] = field(default_factory=dict)
    preamble: dict[str, None] = field(default_factory=dict)

    def refusal(self, recipe: RecipeArgument) -> str | None:
        """Refuse O2 and O3."""
        return O2_O3.format(recipe.level) if recipe.level in {"O2", "O3"} else None

    def setup(self, given: Initialize, recipe: RecipeArgument, *, on: bool) -> str:
        """Write the scaler."""
        del given
        self.imports["import torch"] = None
        self.preamble[f'{self.device} = "cuda" if torch.cuda.is_available() else "cpu"'] = None
        tests = [recipe.enabled] if recipe.enabled else []
        if recipe.level is None:
            tests.append(f'{recipe.level_text} == "O1"')
        enabled = " and ".join(tests)
        if not on or recipe.level == "O0":
            enabled = "False"
        options = [self.device]
        scale = recipe.settings.get("loss_scale")
        start = scale.get("init") if isinstance(scale, dict) else scale
        if isinstance(start, float):
            options.append(f"init_scale={start!r}")
        if enabled:
            options.append(f"enabled={enabled}")
        return f"{self.object} = torch.amp.GradScaler({', '.join(options)})"

    def reasons(self, recipe: RecipeArgument) -> list[str]:
        """Say what a GradScaler lacks."""
        found = [] if recipe.needs_function else list(recipe.reasons)
        if recipe.level is None:
            found.append(
                f"O1 is on and O0 is off here, whatever else {recipe.level_text} may be; "
                + O2_O3.format("with O2 and O3 Apex")
            )
        scale = recipe.settings.get("loss_scale")
        if isinstance(scale, float):
            found.append("GradScaler has no static scale: it starts from this one and moves")
        elif isinstance(scale, dict):
            found.append("GradScaler has no limits: min_loss_scale and max_loss_scale are left out")
        elif recipe.needs_function:
            found.append("keep_batchnorm_fp32 and loss_scale are left out: GradScaler has neither")
        return found

    def scales(self, losses: str) -> str:
        """Write the one scale, for each loss."""
        each = f'{{"loss_scale": {self.object}.get_scale()}}'
        return f'{{f"loss_scaler{{i}}": {each} for i in range({losses})}}'

    def autocast(self) -> str:
        """Write torch's context."""
        on = "" if self.always_on else f", enabled={self.object}.is_enabled()"
        return f"with torch.autocast({self.device}, dtype=torch.float16{on}):"

    def backward_text(
        self, loss: str, options: list[str], optimizers: str, loss_id: str | None
    ) -> str:
        """Write a scaled backward."""
        del optimizers, loss_id
        return f"{self.object}.scale({loss}).backward({', '.join(options)})"

    def step(self, optimizer: str) -> str:
        """Write the scaler's step."""
        return f"{self.object}.step({optimizer})"


def engine_target(program: Program, object_: str) -> EngineTarget:
    """Return the engine of a program, with the clipping that the program does."""
    target = EngineTarget(program, object_)
    for clip in program.clips:
        limit = clip.limit
        if not clip.setting:
            continue
        if clip.condition is not None:
            limit = _conditional(clip.limit, clip.condition)
        target.clip[clip.setting] = limit
    return target


def torch_target(program: Program, object_: str) -> TorchTarget:
    """Return the scaler of a program."""
    recipes = [recipe_argument(each.call) for each in program.initializes]
    always_on = all(recipe.level == "O1" and recipe.enabled is None for recipe in recipes)
    always_on = always_on and not any(each.conditional for each in program.initializes)
    return TorchTarget(program, object_, fresh("AMP_DEVICE", program.names), always_on)


def code_of_argument(call: cst.Call, name: str, place: int) -> str:
    """Return the source of an argument."""
    found = argument(call, name, place)
    return "" if found is None else code(found)


def _conditional(limit: str, condition: str) -> str:
    if condition == f"{limit} is not None":
        return limit
    if condition == limit:
        return f"{limit} or None"
    return f"{limit} if {condition} else None"
