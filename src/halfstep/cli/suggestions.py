"""Errors of usage in one line that says what to write instead.

The tables contain the words of other programs for commands, options and values. A suggestion is
made only if the command has the option that the suggestion begins with, so that one table serves
all commands. Beside the tables, an option may be the name of a recipe or of a field of the config,
and extra arguments may belong to the option before them.
"""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from halfstep.cli.command_line import CommandLine, commands
from halfstep.recipe import RECIPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Row = TypeVar("_Row")
COMMANDS: Mapping[str, Sequence[str]] = {
    "list ls": ("recipes", "configs", "runs"),
    "evaluate test validate val": ("eval RUN",),
    "infer inference classify": ("predict RUN IMAGES",),
    "fit run start finetune": ("train CONFIG",),
    "resume continue": ("train CONFIG --resume",),
    "new create": ("init DIR",),
    "debug diagnose explain": ("doctor RUN",),
    "benchmark profile": ("bench step CONFIG",),
    "split": ("data folds CSV",),
    "convert": ("export RUN", "migrate FILE"),
    "version": ("--version",),
    "help": ("--help",),
    "info": ("env",),
    "gpus devices": ("env", "advise --gpu list"),
}
"""Words for commands, and the commands that do it."""

OPTIONS: Mapping[str, Sequence[str]] = {
    "amp use-amp mixed-precision autocast float16": ("--recipe fp16", "--recipes fp32,fp16"),
    "bfloat16": ("--recipe bf16", "--recipes fp32,bf16"),
    "precision dtype opt-level": (
        "--recipe NAME; halfstep recipes lists them",
        "--recipes NAME,NAME",
    ),
    "loss-scale": ("--options recipe.loss_scale=...",),
    "epoch num-epochs num-train-epochs max-epochs e": ("--epochs",),
    "learning-rate": ("--lr",),
    "batch bs train-batch-size b": ("--batch-size",),
    "num-workers j": ("--options data.workers=...",),
    "data data-dir data-path root": ("--options data.root=...",),
    "model arch": ("--options model.name=...",),
    "optim optimizer": ("--options optimizer.name=...",),
    "scheduler lr-scheduler schedule": ("--options schedule.name=...",),
    "random-seed": ("--seed", "--seeds"),
    "name run-name experiment exp-name": ("--tag",),
    "output output-dir outdir save-dir save o": ("--out",),
    "force f yes y": ("--overwrite", "--fresh"),
    "checkpoint ckpt resume-from": ("--resume",),
    "cuda gpu use-cuda": ("--gpus", "--device cuda"),
    "cpu no-cuda": ("--device cpu",),
    "nproc nproc-per-node num-processes world-size": ("--processes",),
    "silent no-progress q": ("--quiet",),
    "config cfg c": ("CONFIG",),
    "run model-dir": ("RUN",),
}
"""Words for options, and what to write in a command that has the option or argument."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "--format": {
        "tflite tensorflow tf keras savedmodel": "onnx, which onnx2tf converts",
        "tensorrt trt engine": "onnx, which TensorRT's trtexec reads",
        "openvino ncnn mnn": "onnx, which their converters read",
        "coreml mlmodel executorch": "torch, which their converters read",
        "torchscript jit pt2 aoti": "torch",
        "pt pth pytorch hf huggingface": "safetensors",
    },
    "--checkpoint": {"latest newest final": "last", "top": "best"},
}
"""Words for the values of an option, and the value to write."""

_KEY = re.compile(r"([A-Za-z_][\w.]*)[:=]?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=.+", re.DOTALL)


def message(error: Any, program: Any, argv: Sequence[str]) -> str:
    """Return an error of usage in one line.

    Args:
        error: A `UsageError` of click, or of the copy of click in typer.
        program: The command of the whole program.
        argv: The arguments after the program's name.
    """
    line = CommandLine.of(program, argv)
    complaint = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    instead = ""
    if hasattr(error, "possibilities"):
        instead = _of_option(error.option_name, line)
        complaint = complaint.partition(" (")[0] if instead else complaint
    elif getattr(error, "param", None) is not None:
        complaint, instead = _of_value(error.param, complaint, line)
    elif commands(line.command) and line.words:
        complaint = f"No such command {line.words[0]!r}"
        instead = _of_command(line.words[0], line, program)
    elif not hasattr(error, "option_name"):
        instead = _of_extra(line)
    return f"{complaint}{f'; write {instead}' if instead else ''}; see {line.name} --help"


def _of_command(word: str, line: CommandLine, program: Any) -> str:
    """Return the command to write instead of an unknown one."""
    groups = {f"{name} ": command for name, command in commands(program).items()} | {"": program}
    nested = [f"{name}{word}" for name, group in groups.items() if word in commands(group)]
    trained = [f"train {word}"] if _is_config(word) else []
    names = nested or [*(_row(COMMANDS, word) or ())] or trained
    close = difflib.get_close_matches(word, commands(line.command), n=1)
    written = [f"halfstep {name}" for name in names] or [f"{line.name} {name}" for name in close]
    return " or ".join([*([", ".join(written[:-1])] if written[1:] else []), *written[-1:]])


def _is_config(word: str) -> bool:
    from halfstep.train.config.files import shipped

    return word in shipped() or (word.endswith((".yaml", ".yml")) and Path(word).is_file())


def _of_option(option: str, line: CommandLine) -> str:
    """Return what to write instead of an unknown option, with its value if there is one."""
    name = _plain(option)
    rows = _row(OPTIONS, name) or ()
    if name in RECIPES:
        rows = (f"--recipe {name}", f"--recipes fp32,{name}")
    known = line.known
    begun = [flag for flag in known if flag.startswith(option)]
    written = next((row for row in rows if row.split()[0] in known), "")
    if len(begun) == 1:
        written = begun[0]
    elif not (written or begun) and "--options" in known:
        written = _field(name.replace("-", "_"))
    value = line.following(option)
    if written.endswith("..."):
        return written.removesuffix("...") + (shlex.quote(value) if value else "...")
    if written and not written.startswith("-"):
        return f"{line.name} {value or written}"
    takes_value = written in known and not known[written].is_flag
    return f"{written} {value}" if value and takes_value else written


def _field(name: str) -> str:
    """Return the option that sets a field of the config, by its whole name or the last part."""
    from halfstep.train.config.errors import keys
    from halfstep.train.config.schema import Config

    setting = next((key for key in keys(Config) if f".{key}".endswith(f".{name}")), "")
    return f"--options {setting}=..." if setting else ""


def _of_value(option: Any, complaint: str, line: CommandLine) -> tuple[str, str]:
    """Return the error of a value, with the value in it, and what to write instead."""
    given = line.values(option)
    if not given:
        return complaint, ""
    complaint = complaint.replace(": Input should be ", f": {given[-1]!r}; allowed: ")
    complaint = complaint.partition(", unable to parse")[0]
    allowed = re.findall(r"'([\w-]+)'", complaint.partition(" is not one of ")[2])
    close = difflib.get_close_matches(given[-1], allowed, n=1)
    for flag in option.opts:
        for value in (_row(VALUES.get(flag, {}), given[-1]), *close):
            if value:
                return complaint, f"{flag} {value}"
    return complaint, ""


def _of_extra(line: CommandLine) -> str:
    """Return what to write instead of extra arguments.

    They may be further values of the option before them, as in `--recipes fp32 fp16`, or values and
    recipes without an option.
    """
    loose, options = line.loose(), []
    arguments = [
        parameter for parameter in line.command.params if not parameter.opts[0].startswith("-")
    ]
    required = sum(parameter.required for parameter in arguments)
    for index, (option, words) in enumerate(line.parts):
        if not loose[index] or option is None or option.is_flag:
            continue
        missing = max(0, required - sum(map(len, loose[:index] + loose[index + 1 :])))
        own = words[: len(words) - missing]
        written = _joined(option, own) if len(own) > 1 else ""
        options += [f"{option.opts[0]} {written}"] if written else []
    if options:
        return " ".join(options)
    extra = [word for words in loose for word in words][len(arguments) :]
    flags: tuple[str, ...] = ()
    if all(map(_ASSIGNMENT.fullmatch, extra)):
        flags = ("--options",)
    elif all(word in RECIPES for word in extra):
        flags = ("--recipe", "--recipes")
    flag = next((name for name in flags if name in line.known), "")
    return flag and f"{flag} {_joined(line.known[flag], extra) or ','.join(extra)}"


def _joined(option: Any, words: Sequence[str]) -> str:
    """Return several values as the option takes them; "" if it takes only one."""
    metavar = option.metavar or ""
    if not metavar.startswith("KEY=VALUE"):
        return ",".join(word.strip(",") for word in words) if "," in metavar else ""
    flags: list[str] = []
    key = ""
    for word in words:
        if key and word in {"=", ":"}:
            continue
        if key:
            flags.append(f"{key}={word.lstrip('=')}")
            key = ""
        elif _ASSIGNMENT.fullmatch(word):
            flags.append(word)
        elif match := _KEY.fullmatch(word):
            key = match[1]
        elif flags and "," in metavar:
            flags[-1] += f",{word}"
        else:
            return ""
    return "" if key else shlex.join(flags)


def _plain(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")


def _row(table: Mapping[str, _Row], word: str) -> _Row | None:
    return next((row for words, row in table.items() if _plain(word) in words.split()), None)
