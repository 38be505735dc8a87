"""Prints advice on a terminal: a row for each recipe, the reasons, and the settings to write."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from halfstep import yaml_text
from halfstep.advise import unscaled
from halfstep.advise.choose.advice import NOT_EXAMINED
from halfstep.advise.predict.forecast import none_fits
from halfstep.plurals import counted
from halfstep.show import units
from halfstep.show.text import print_code, print_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from halfstep.advise.answer import Answer
    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.solve import Choice
    from halfstep.advise.choose.trial import Trial
    from halfstep.advise.predict.forecast import Forecast

IN_FP32 = "in fp32: the layers and operators that must stay in fp32"
ROUNDING = (
    "rounding error: squared error of the gradient, as a share of its variance between batches; "
    "safe up to 10 %"
)
FIRST_SCALE = (
    "first loss scale: the factor by which the loss is multiplied at the start of training"
)
HEADROOM = (
    "headroom: by how many powers of two the model's largest half-precision value is below "
    "overflow, and the module or operator that computes the value"
)
SETTLED = {"good": "as good as fp32", "bad": "worse than fp32", "open": "not settled"}


def show(console: Console, found: Answer) -> None:
    """Print which recipes are safe, and why the others are not."""
    advice = found.advice
    assert advice is not None
    print_text(console, f"{advice.subject}: {steps(found)}; {noise(advice)}")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for header in ("recipe", "safe", "in fp32", "rounding\nerror", "first loss\nscale"):
        table.add_column(header, justify="right" if "\n" in header else "left")
    table.add_column("headroom")
    for trial in advice.trials:
        table.add_row(trial.base, *_cells(trial, advice))
    for name in advice.unexamined:
        table.add_row(name, "not examined")
    console.print(table)
    for line in (IN_FP32, ROUNDING, FIRST_SCALE, HEADROOM):
        print_text(console, line)
    for trial in advice.trials:
        for line in reasons(trial, advice):
            print_text(console, f"{trial.base}: {line}")


def steps(found: Answer) -> str:
    """Say how many steps were recorded, and with which optimizer if no config names it."""
    assert found.advice is not None
    said = f"{counted(found.advice.recorded.steps, 'step')} in fp32"
    settings = found.subject.trained_with
    return f"{said} with {_optimizer(**settings)}" if settings else said


def _optimizer(name: str, lr: float, momentum: float | None = None) -> str:
    more = f" and momentum {momentum:g}" if momentum else ""
    return f"{name}, learning rate {lr:g}{more}"


def noise(advice: Advice) -> str:
    """Say how much gradients differ between batches."""
    ratio = f"{advice.recorded.noise_ratio:.2g}"
    return f"the gradient's standard deviation between batches is {ratio} times its norm"


def conclude(console: Console, found: Answer, more: str = "") -> None:
    """Print the safe recipes and the choice for each GPU.

    Args:
        console: The terminal.
        found: The answer.
        more: How to examine the remaining recipes; printed after their names.
    """
    if line := assumed(found):
        print_text(console, line)
    if found.advice:
        print_text(console, safe(found.advice), "bold")
    if line := not_examined(found):
        print_text(console, f"{line}; {more}")
    _choices(console, found, found.choices)


def settings(console: Console, found: Answer, before: Answer) -> None:
    """Print the verifications, the choices that they have changed, and the lines to write.

    Args:
        console: The terminal.
        found: The answer.
        before: The answer that `conclude` has printed.
    """
    for name, each in found.verified.items():
        said = f"{name} in short training runs: {SETTLED[each.settled]}; {each.said}"
        print_text(console, said)
    _choices(console, found, [each for each in found.choices if each not in before.choices])
    trials = found.recommended if found.choices else found.advice_with_exceptions
    specs = {trial.base: trial.spec for trial in trials}
    for name, spec in {**specs, **found.references}.items():
        if found.subject.config:
            where, lines = "in a config", yaml_text.dump({"recipe": spec}).rstrip()
        else:
            given = spec if len(spec) > 1 else name
            where, lines = "in Python", f"Engine(model, optimizer, recipe={given!r})"
            if plain := _without_engine(spec):
                lines += f"\n# or without halfstep: {plain}"
        print_code(console, f"# {with_gpus(name, found)}, {where}:", "dim")
        print_code(console, lines)


def _choices(console: Console, found: Answer, choices: Sequence[Choice]) -> None:
    for choice in choices:
        print_text(console, chosen(choice, found.advice), "bold")
        for recipe, reason in choice.left.items():
            if recipe not in found.unexamined and not _is_rejected(found.advice, recipe):
                print_text(console, f"  not {recipe}: {reason}")
    for line in unscaled.lines(each.best.trial.base for each in choices if each.best):
        print_text(console, line)


def with_gpus(name: str, found: Answer) -> str:
    """Return the name of a recipe and the GPUs that it is to be used on: "tf32 on H100, L4"."""
    gpus = ", ".join(each.gpu.name for each in found.choices if _recipe(each) == name)
    return f"{name} on {gpus}" if gpus else name


def _recipe(choice: Choice) -> str:
    return choice.best.trial.base if choice.best else choice.reference.recipe


def _without_engine(spec: Mapping[str, Any]) -> str:
    """Return how a plain loop of PyTorch computes in a recipe; "" if that takes more than a line.

    Args:
        spec: The recipe as in a config.
    """
    if "exceptions" in spec:
        return ""
    scale = spec.get("loss_scale")
    init = scale["init"] if isinstance(scale, dict) else 2.0**16
    return {
        "tf32": 'torch.set_float32_matmul_precision("high")',
        "bf16": 'with torch.autocast("cuda", dtype=torch.bfloat16): around the forward pass',
        "fp16": 'with torch.autocast("cuda", dtype=torch.float16): around the forward pass, and '
        f'torch.amp.GradScaler("cuda", init_scale={init:g})',
    }.get(spec["base"], "")


def chosen(choice: Choice, advice: Advice | None) -> str:
    """Say in one line which recipe to use on a GPU, with its predicted cost and its warnings."""
    where = f"on {choice.gpu.name}"
    best = choice.best
    if best is None and not choice.reference.fits:
        return f"{where}: {none_fits(choice.reference)}"
    if best is None:
        return (
            f"{where}: use {choice.reference.recipe}; no {_others(advice)} is predicted to be "
            f"clearly faster{_waiting(choice.reference)}{_measure_it(choice)}"
        )
    cost, speed_up = best.cost, best.cost.speed_up
    assert speed_up is not None
    exceptions = len(best.trial.exceptions)
    beside = f" with {counted(exceptions, 'exception')}" if exceptions else ""
    low, value, high = map(units.ratio, speed_up)
    warnings = advice.warnings(best.trial) if advice else []
    alike = [each.trial.base for each in choice.as_fast]
    if choice.reference.fits and speed_up.low < 1 <= speed_up.high:
        alike.append(choice.reference.recipe)
    others = ", ".join(alike)
    more = f"; about as fast: {others}" if others else ""
    more += "".join(f"; warning: {each}" for each in warnings)
    return (
        f"{where}: use {best.trial.base}{beside}, predicted to be {value} [{low}, {high}] times as "
        f"fast as {choice.reference.recipe} and to need {cost.memory / 2**30:.1f} of "
        f"{cost.limit / 2**30:.1f} GiB{more}"
    )


def _measure_it(choice: Choice) -> str:
    if not choice.reference.caution or choice.reference.recipe != "tf32":
        return ""
    return "; half precision can be faster than predicted (see the note on this GPU): measure it"


def _waiting(reference: Forecast) -> str:
    """Say that the GPU waits for the CPU, and from which batch size on it would not."""
    if reference.bound != "host":
        return ""
    batch, largest = reference.busy_batch, reference.largest_batch
    limit = ""
    if batch is not None and largest is not None and batch <= largest:
        digits = 10 ** max(0, math.floor(math.log10(batch)) - 1)
        limit = f"up to a batch of about {math.ceil(batch / digits) * digits:,}, "
    return (
        f"; {limit}the CPU takes longer to launch the kernels than the GPU to run them: try a "
        "larger --batch-size"
    )


def safe(advice: Advice) -> str:
    """Name the safe recipes, those with a warning last; or say that no examined recipe is safe."""
    warned = [trial.base for trial in advice.safe if advice.warnings(trial)]
    names = [trial.base for trial in advice.safe if trial.base not in warned]
    said = [f"safe: {', '.join(names)}"] * bool(names)
    said += [f"safe, with a warning: {', '.join(warned)}"] * bool(warned)
    if said:
        return "; ".join(said)
    if advice.unexamined:
        return (
            "none of the examined recipes is safe; train in fp32 or tf32 until the others are "
            "examined"
        )
    return "none of these recipes is safe; train in fp32 or tf32"


def verdict(trial: Trial, advice: Advice) -> str:
    """Return the table cell about a recipe's safety; the warnings are below the table."""
    if trial.rejected:
        return "no"
    return "yes, warning" if advice.warnings(trial) else "yes"


def assumed(found: Answer) -> str:
    """Say which flags were not given although the answer depends on them; "" if all were given."""
    settings = found.subject.trained_with
    if not settings:
        return ""
    texts = {
        "name": ("--optimizer", _named(settings)),
        "lr": ("--lr", f"a learning rate of {settings['lr']:g}"),
    }
    # Time and memory do not depend on the learning rate.
    missing = [texts[name] for name in found.subject.assumed if found.advice or name != "lr"]
    if not missing:
        return ""
    flags = " and no ".join(flag for flag, _ in missing)
    values = " with ".join(value for _, value in missing)
    depends = "safe recipes depend" if found.advice else "predicted time and memory depend"
    return (
        f"no {flags} given: assuming {values}; the {depends} on "
        f"{'both' if len(missing) > 1 else 'it'}"
    )


def _named(settings: Mapping[str, Any]) -> str:
    momentum = settings.get("momentum")
    return f"{settings['name']}{f' (momentum {momentum:g})' if momentum else ''}"


def not_examined(found: Answer) -> str:
    """Say which recipes were not examined because of the time budget; "" if all were examined."""
    names = ", ".join(found.unexamined)
    why = "" if found.advice else ", because the budget is too short for the recorded steps in fp32"
    return names and f"{NOT_EXAMINED}{why}: {names}"


def _others(advice: Advice | None) -> str:
    return "examined recipe" if advice and advice.unexamined else "other recipe"


def _is_rejected(advice: Advice | None, recipe: str) -> bool:
    return advice is None or bool(advice.trial(recipe).rejected)


def _cells(trial: Trial, advice: Advice) -> list[str]:
    damage = math.inf if trial.rehearsal is None else trial.rehearsal.gradient_damage
    scaling = trial.recipe.scaling
    bits, at = trial.headroom
    return [
        verdict(trial, advice),
        "\n".join(map(module_text, trial.exceptions)) or "-" if not trial.rejected else "",
        units.small_share(damage) if math.isfinite(damage) else "",
        f"{scaling.init:g}" if scaling else "",
        f"{counted(round(bits), 'bit')} in {module_text(at)}"
        if math.isfinite(bits) and not trial.rejected
        else "",
    ]


def module_text(name: str) -> str:
    """Format a module's name so that one like "1.0" is not read as a number."""
    return name if any(each.isalpha() for each in name) else f"module {name}"


def reasons(trial: Trial, advice: Advice) -> list[str]:
    """Say why a recipe is rejected, or which exceptions it needs, and its warnings."""
    if trial.rejected:
        return [f"rejected: {trial.rejected}"]
    said = []
    for pattern, reason in trial.exceptions.items():
        file, _, number = trial.lines.get(pattern, "").rpartition(":")
        where = f" ({Path(file).name}:{number})" if file else ""
        said.append(f"{module_text(pattern)}{where}: {reason}")
    return said + [f"warning: {each}" for each in advice.warnings(trial)]
