"""Writes the lines that replace amp's, for `halfstep.Engine` or for `torch.amp`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from halfstep.migrate.analysis.recipes import FROM_APEX, NO_MIXED_PRECISION, SCALES
from halfstep.migrate.program.render import call_text
from halfstep.migrate.rewriting.casts import device_name, device_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.migrate.analysis.recipes import RecipeArgument
    from halfstep.migrate.program.program import Initialize, Program
    from halfstep.migrate.rewriting.placement import SharedFile

MASTERS = '[param for group in {}.param_groups for param in group["params"]]'
O3 = "O3 trains fp16 parameters without fp32 copies; torch.amp has no counterpart"
AS_O1 = (
    "O2 and O3 kept the parameters in fp16; torch.amp leaves them in fp32 and casts one function "
    "at a time, as O1 did"
)
MOVES = "a GradScaler starts from 65536 and adapts its scale"


def _is_level_test(test: str | None, recipe: RecipeArgument) -> bool:
    """Tell whether a test is only `opt_level != "O0"`, which the recipe expresses already."""
    asked = f'{recipe.level_text} != "O0"'
    return test is not None and ast.dump(ast.parse(test)) == ast.dump(ast.parse(asked))


class Target(Protocol):
    """Writes the replacement of each function of amp.

    Attributes:
        object: The expression for the engine or scaler in the program.
        called: "the Engine" or "the GradScaler", for messages.
        steps_whole: Whether its step also unscales, clips and zeroes.
        imports: The import statements that the written lines need, in order.
        preamble: Statements that the written lines need after the imports, in order.
        shared: The new file that holds the engine or scaler, or None.
    """

    object: str
    called: str
    steps_whole: bool
    imports: dict[str, None]
    preamble: dict[str, None]
    shared: SharedFile | None

    def setup(self, given: Initialize, recipe: RecipeArgument, test: str | None) -> str:
        """Write the statement that creates the engine or scaler.

        `test` is the source of the test under which it is on, or None if there is no test; "False"
        switches it off.
        """

    def reasons(self, recipe: RecipeArgument) -> list[str]:
        """Return notes on the settings that could not be translated."""

    def scales(self, losses: str) -> str:
        """Write the loss scales in the format of `amp.state_dict()`.

        `losses` is the source of the number of losses.
        """

    def scale(self) -> str:
        """Write the loss scale, as a number."""

    def autocast(self) -> str:
        """Write the head of a `with` around a forward pass."""

    def backward_text(
        self, loss: str, options: Sequence[str], optimizers: str, loss_id: str | None
    ) -> str:
        """Write a backward; `optimizers` is "" if the loss reaches the parameters of all."""

    def step(self, optimizer: str) -> str:
        """Write a step; `optimizer` is "" for all optimizers."""


@dataclass
class EngineTarget:
    """`halfstep.Engine`: one object that scales, clips, steps and zeroes."""

    program: Program
    object: str = ""
    clip: dict[str, str] = field(default_factory=dict)
    called = "the Engine"
    steps_whole = True
    imports: dict[str, None] = field(default_factory=dict)
    preamble: dict[str, None] = field(default_factory=dict)
    shared: SharedFile | None = None

    def setup(self, given: Initialize, recipe: RecipeArgument, test: str | None) -> str:
        """Write the statement that creates the engine."""
        taken = "Engine" in self.program.names
        self.imports["import halfstep" if taken else "from halfstep import Engine"] = None
        text = recipe.text
        if test == "False":
            text = NO_MIXED_PRECISION
        elif recipe.needs_function:
            self.preamble[FROM_APEX] = None
        if test not in {None, "False"} and not _is_level_test(test, recipe):
            text = f"{text} if {test} else {NO_MIXED_PRECISION}"
        extra = [f"{name}={limit}" for name, limit in self.clip.items()]
        arguments = [given.models_text, given.optimizers_text, f"recipe={text}", *extra]
        return call_text(f"{self.object} = {'halfstep.' * taken}Engine", arguments)

    def reasons(self, recipe: RecipeArgument) -> list[str]:
        """Return notes on the settings that have no field in a recipe."""
        return [f"{each} is left out; write it into the recipe" for each in recipe.left_out]

    def scales(self, losses: str) -> str:
        """Write a call of `loss_scales_like_apex`, which is added to the program."""
        self.preamble[SCALES] = None
        return f"loss_scales_like_apex({self.object}, {losses})"

    def scale(self) -> str:
        """Write the engine's loss scale."""
        return f"{self.object}.loss_scale"

    def autocast(self) -> str:
        """Write the head of a `with` for the engine's autocast."""
        return f"with {self.object}.autocast():"

    def backward_text(
        self, loss: str, options: Sequence[str], optimizers: str, loss_id: str | None
    ) -> str:
        """Write the engine's backward."""
        if optimizers:
            options = [f"optimizers={optimizers}", *options]
        if loss_id is not None:
            options = [*options, f"loss_id={loss_id}"]
        return f"{self.object}.backward({', '.join([loss, *options])})"

    def step(self, optimizer: str) -> str:
        """Write the engine's step."""
        return f"{self.object}.step({f'optimizers={optimizer}' if optimizer else ''})"


@dataclass
class TorchTarget:
    """`torch.autocast` and one `torch.amp.GradScaler`."""

    program: Program
    object: str = ""
    always_on: bool = False
    called = "the GradScaler"
    steps_whole = False
    imports: dict[str, None] = field(default_factory=dict)
    preamble: dict[str, None] = field(default_factory=dict)
    shared: SharedFile | None = None

    @property
    def device(self) -> str:
        """The name of the variable with the type of the device, "cuda" or "cpu"."""
        return device_name(self.program)

    def setup(self, given: Initialize, recipe: RecipeArgument, test: str | None) -> str:
        """Write the statement that creates the scaler."""
        del given
        self._needs_device()
        tests = [f"({each})" if " or " in each else each for each in (test,) if each]
        if recipe.enabled:
            tests.append(recipe.enabled)
        if recipe.level is None and "O0" in recipe.levels and not _is_level_test(test, recipe):
            tests.append(f'{recipe.level_text} != "O0"')
        enabled = tests[0] if len(tests) == 1 else " and ".join(tests)
        if test == "False" or recipe.level == "O0":
            enabled = "False"
        options = [self.device]
        scale = self._scale(recipe)
        start = scale.get("init") if isinstance(scale, dict) else scale
        if isinstance(start, float):
            options.append(f"init_scale={start!r}")
        if enabled:
            truth = ast.Compare | ast.Constant | ast.UnaryOp
            already = isinstance(ast.parse(enabled, mode="eval").body, truth)
            options.append(f"enabled={enabled if already else f'bool({enabled})'}")
        return call_text(f"{self.object} = torch.amp.GradScaler", options)

    def reasons(self, recipe: RecipeArgument) -> list[str]:
        """Return notes on the settings that `torch.amp` does not have."""
        found = [f"{each} is left out: torch.amp has no such setting" for each in recipe.left_out]
        if recipe.levels & {"O2", "O3"}:
            found.append(AS_O1)
        scale = self._scale(recipe)
        if recipe.loss_scale_text is not None:
            found.append(f"loss_scale={recipe.loss_scale_text} is left out: {MOVES}")
        elif isinstance(scale, float):
            found.append("GradScaler has no static scale: it starts from this one and adapts it")
        elif isinstance(scale, dict):
            found.append("GradScaler has no limits: min_loss_scale and max_loss_scale are left out")
        return found

    def scales(self, losses: str) -> str:
        """Write the scaler's one scale as the scale of every loss."""
        each = f'{{"loss_scale": {self.object}.get_scale()}}'
        return f'{{f"loss_scaler{{i}}": {each} for i in range({losses})}}'

    def scale(self) -> str:
        """Write the scaler's scale."""
        return f"{self.object}.get_scale()"

    def autocast(self) -> str:
        """Write the head of a `with torch.autocast(...)`."""
        self._needs_device()
        on = "" if self.always_on else f", enabled={self.object}.is_enabled()"
        return f"with torch.autocast({self.device}, dtype=torch.float16{on}):"

    def backward_text(
        self, loss: str, options: Sequence[str], optimizers: str, loss_id: str | None
    ) -> str:
        """Write a scaled backward."""
        del optimizers, loss_id
        return f"{self.object}.scale({loss}).backward({', '.join(options)})"

    def step(self, optimizer: str) -> str:
        """Write the scaler's step."""
        return f"{self.object}.step({optimizer})"

    def _scale(self, recipe: RecipeArgument) -> Any:
        """Return the requested loss scale; a recipe has None for the static scale 1."""
        scale = recipe.settings.get("loss_scale", "dynamic")
        return 1.0 if scale is None else scale

    def _needs_device(self) -> None:
        self.imports["import torch"] = None
        self.preamble[device_text(self.program)] = None
