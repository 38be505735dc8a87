"""Faults put one at a time into training programs of over a thousand lines: does doctor name them?

The programs are timm's `train.py` and torchvision's reference for classification, taken from
checkouts that the user names, over the installed libraries, and a language model of transformers
trained with Accelerate. A fault is a few lines exchanged in a copy of a file of the program or of
its library; nothing of either is kept here. Each program also runs without a fault.

    python benchmarks/doctor_large_programs.py --timm DIR --torchvision DIR/references
"""

# ruff: noqa: E501  # Text that is exchanged stays in the lines that it has.

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

RESULTS = Path(__file__).parent / "results" / "doctor_large_programs.json"
TIMM_ARGUMENTS = [
    "--model",
    "test_vit",
    "--num-classes",
    "6",
    "--img-size",
    "32",
    "-b",
    "8",
    "--epochs",
    "1",
    "--amp",
    "--device",
    "cpu",
    "--workers",
    "0",
    "--opt",
    "adamw",
    "--lr",
    "1e-3",
    "--clip-grad",
    "1.0",
    "--model-ema",
    "--no-prefetcher",
    "--warmup-epochs",
    "0",
]
VISION_ARGUMENTS = [
    "--model",
    "shufflenet_v2_x0_5",
    "--device",
    "cpu",
    "--amp",
    "-b",
    "8",
    "-j",
    "0",
    "--epochs",
    "2",
    "--lr",
    "0.01",
    "--clip-grad-norm",
    "1",
    "--train-crop-size",
    "32",
    "--val-resize-size",
    "36",
    "--val-crop-size",
    "32",
    "--model-ema",
    "--lr-warmup-epochs",
    "0",
    "--label-smoothing",
    "0.1",
]
ACCELERATED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
sizes = dict(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=40)
config = GPT2Config(bos_token_id=0, eos_token_id=0, attn_implementation="eager", **sizes)
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(torch.randint(1, 40, (48, 12)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for number, tokens in enumerate(loader):
    labels = tokens.clone()
    loss = model(input_ids=tokens, labels=labels).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Exchange:
    """Text of a file that is replaced; `file` is a path in the program or the name of a module."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Program:
    """A program, what is exchanged so that it runs in fp16 on a CPU, and its arguments."""

    name: str
    entry: str
    base: tuple[Exchange, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """What is put in, and what doctor should say: a part of the line, and the module."""

    program: str
    row: int
    code: str
    exchanges: tuple[Exchange, ...]
    line: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What doctor said."""

    program: str
    row: int | None
    expected: str
    given: list[str] = field(default_factory=list)
    line: str = ""
    module: str = ""
    line_is_right: bool | None = None
    module_is_right: bool | None = None


PROGRAMS = {
    "timm": Program(
        "timm",
        "train.py",
        (Exchange("train.py", "device.type in ('cuda',)", "device.type in ('cuda', 'cpu')"),),
        tuple(TIMM_ARGUMENTS),
    ),
    "torchvision": Program(
        "torchvision",
        "train.py",
        (
            Exchange(
                "train.py",
                "torch.cuda.amp.autocast(enabled=scaler is not None)",
                "torch.autocast('cpu', torch.float16, enabled=scaler is not None)",
            ),
            Exchange("train.py", "torch.cuda.amp.GradScaler()", "torch.amp.GradScaler('cpu')"),
        ),
        tuple(VISION_ARGUMENTS),
    ),
    "accelerate": Program("accelerate", "train.py"),
}

SCALER, ATTENTION, MLP = "timm.utils.cuda", "timm.layers.attention", "timm.layers.mlp"
LOSS, GPT = "timm.loss.cross_entropy", "transformers.models.gpt2.modeling_gpt2"
UNSCALE = "                self._scaler.unscale_(optimizer)"
BACKWARD = "        self._scaler.scale(loss).backward(create_graph=create_graph)\n"
UPDATE = (
    "            self._scaler.step(optimizer)\n            self._scaler.update()\n\n"
    "    def state_dict(self):\n        return self._scaler"
)
PRODUCT = (
    "            attn = q @ k.transpose(-2, -1)\n            attn_bias = resolve_self_attn_mask(N"
)
LARGE = "    if args.grad_checkpointing:\n        model.set_grad_checkpointing(enable=True)\n"
START = "    trainable_module = task.get_trainable_module()\n    trainable_module.train()\n"


def _after_model(text: str) -> Exchange:
    return Exchange("train.py", LARGE, text + LARGE)


def _weights(part: str, factor: float) -> Exchange:
    return _after_model(
        f"    for _name, _each in model.named_parameters():\n"
        f"        if '{part}' in _name:\n            _each.data.mul_({factor})\n"
    )


def _update(text: str) -> Exchange:
    return Exchange(SCALER, UPDATE, text + UPDATE[UPDATE.index("\n\n") :])


STEP = "            self._scaler.step(optimizer)\n"
DONE = "            self._scaler.update()"
FAULTS = (
    Fault(
        "timm",
        1,
        "STEP_BYPASSES_SCALER",
        (_update(f"{STEP}{DONE}\n            optimizer.step()"),),
        "optimizer.step()",
    ),
    Fault(
        "timm",
        2,
        "GRADIENTS_CHANGED_WHILE_SCALED",
        (Exchange(SCALER, UNSCALE, "                pass"),),
        "clip_grad",
    ),
    Fault(
        "timm",
        4,
        "UNSCALED_EVERY_MICRO_STEP",
        (
            Exchange(
                SCALER,
                BACKWARD,
                BACKWARD
                + "        if not need_update:\n            self._scaler.unscale_(optimizer)\n"
                "            self._scaler.update()\n",
            ),
        ),
        "unscale_",
        arguments=("--grad-accum-steps", "2"),
    ),
    Fault(
        "timm", 5, "SCALER_UPDATED_TWICE", (_update(f"{STEP}{DONE}\n{DONE}"),), "_scaler.update()"
    ),
    Fault(
        "timm",
        6,
        "BACKWARD_NOT_SCALED",
        (Exchange(SCALER, BACKWARD, "        loss.backward()\n"),),
        "loss.backward()",
    ),
    Fault(
        "timm",
        8,
        "SCALER_NOT_SAVED",
        (Exchange("timm.utils.checkpoint_saver", "if self.amp_scaler is not None", "if False"),),
        "torch.save",
    ),
    Fault(
        "timm",
        13,
        "BACKWARD_UNDER_AUTOCAST",
        (
            Exchange(
                "train.py",
                "                loss, result = _forward()\n                _backward(loss)\n",
                "                with amp_autocast():\n                    loss, result = _forward()\n"
                "                    _backward(loss)\n",
            ),
        ),
        "backward(",
    ),
    Fault(
        "timm",
        19,
        "MEAN_SQUARE_OVERFLOW",
        (
            _weights("blocks.0.mlp.fc1", 9000.0),
            Exchange(
                MLP,
                "        x = self.act(x)\n        x = self.drop1(x)\n        x = self.norm(x)\n        x = self.fc2(x)",
                "        x = self.act(x)\n        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\n        x = self.fc2(x)",
            ),
            Exchange(MLP, "from torch import nn as nn", "import torch\nfrom torch import nn as nn"),
        ),
        "x.pow(2)",
        "blocks.0.mlp",
    ),
    Fault(
        "timm",
        21,
        "ATTENTION_LOGITS_OVERFLOW",
        (_weights("blocks.1.attn.qkv", 6000.0),),
        "q @ k.transpose",
        "blocks.1.attn",
    ),
    Fault(
        "timm",
        22,
        "MASK_NOT_REPRESENTABLE",
        (
            Exchange(
                ATTENTION,
                PRODUCT,
                "            attn = q @ k.transpose(-2, -1)\n"
                "            attn = attn.masked_fill(attn.new_ones(N, N).triu(1).bool(), -1e9)\n"
                "            attn_bias = resolve_self_attn_mask(N",
            ),
        ),
        "masked_fill",
    ),
    Fault(
        "timm",
        24,
        "FULLY_MASKED_ROW",
        (
            Exchange(
                ATTENTION,
                PRODUCT,
                "            attn = q @ k.transpose(-2, -1)\n"
                "            attn = attn.masked_fill(attn.new_ones(N, N).triu(0).bool(), float('-inf'))\n"
                "            attn_bias = resolve_self_attn_mask(N",
            ),
        ),
        "softmax",
        "blocks.0.attn",
    ),
    Fault(
        "timm",
        29,
        "AVERAGE_IN_HALF",
        (
            Exchange(
                "timm.utils.model_ema",
                "        self.module = deepcopy(model)\n        self.module.eval()\n        self.decay = decay\n        self.min_decay",
                "        self.module = deepcopy(model).to(torch.bfloat16)\n        self.module.eval()\n        self.decay = decay\n        self.min_decay",
            ),
            Exchange(
                "timm.utils.model_ema",
                "            self.apply_update_(model, decay)\n",
                "            for _mine, _its in zip(self.module.parameters(), model.parameters()):\n                _mine.lerp_(_its.to(_mine.dtype), 1 - decay)\n",
            ),
        ),
        "lerp_",
        arguments=("--lr", "1e-2", "--epochs", "4"),
    ),
    Fault(
        "timm",
        30,
        "EXP_OVERFLOW",
        (
            _weights("blocks.0.mlp.fc1", 1500.0),
            Exchange(
                MLP,
                "        x = self.act(x)\n        x = self.drop1(x)\n        x = self.norm(x)",
                "        x = x * (x.exp() / (1 + x.exp()))\n        x = self.norm(x)",
            ),
        ),
        "x.exp()",
        "blocks.0.mlp",
    ),
    Fault(
        "timm",
        31,
        "LOG_OF_ZERO",
        (
            _weights("head.weight", 1e5),
            Exchange(
                LOSS,
                "        logprobs = F.log_softmax(x, dim=-1)\n        nll_loss",
                "        logprobs = F.softmax(x, dim=-1).log()\n        nll_loss",
            ),
        ),
        ".log()",
    ),
    Fault(
        "timm",
        35,
        "CORRUPT_BATCH",
        (
            Exchange(
                "train.py",
                "        if args.channels_last:\n            input = input.contiguous",
                "        if batch_idx == 2:\n            input[1, 0, 3, 3] = float('nan')\n"
                "        if args.channels_last:\n            input = input.contiguous",
            ),
        ),
    ),
    Fault(
        "timm",
        36,
        "ROOT_AT_ZERO",
        (
            Exchange(
                LOSS,
                "        return loss.mean()\n\n\nclass Soft",
                "        spread = (x - x.detach()).square().sum(1)\n"
                "        return loss.mean() + spread.sqrt().mean()\n\n\nclass Soft",
            ),
        ),
        "spread.sqrt()",
    ),
    Fault(
        "timm",
        49,
        "LEARNING_RATE_TOO_HIGH",
        (),
        arguments=("--opt", "sgd", "--lr", "3e4", "--sched", "none"),
    ),
    Fault(
        "torchvision",
        1,
        "STEP_BYPASSES_SCALER",
        (
            Exchange(
                "train.py",
                "            scaler.update()\n",
                "            scaler.update()\n            optimizer.step()\n",
            ),
        ),
        "optimizer.step()",
    ),
    Fault(
        "torchvision",
        2,
        "GRADIENTS_CHANGED_WHILE_SCALED",
        (Exchange("train.py", "                scaler.unscale_(optimizer)\n", ""),),
        "clip_grad_norm_",
    ),
    Fault(
        "torchvision",
        8,
        "SCALER_NOT_SAVED",
        (
            Exchange(
                "train.py",
                '                checkpoint["scaler"] = scaler.state_dict()',
                "                pass",
            ),
        ),
        "torch.save",
    ),
    Fault(
        "torchvision",
        8,
        "SCALER_STATE_NOT_RESTORED",
        (
            Exchange(
                "train.py",
                "        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler)",
                "        scaler = torch.amp.GradScaler('cpu')\n        train_one_epoch(model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler)",
            ),
        ),
        "GradScaler(",
    ),
    Fault(
        "torchvision",
        9,
        "UPDATE_SKIPPED",
        (Exchange("train.py", "            scaler.update()\n", ""),),
        "scaler.",
    ),
    Fault(
        "torchvision",
        11,
        "NO_GRADIENTS",
        (
            Exchange(
                "train.py",
                "    model_without_ddp = model\n",
                "    import copy\n    model = copy.deepcopy(model)\n    model_without_ddp = model\n",
            ),
        ),
    ),
    Fault(
        "torchvision",
        3,
        "FP16_PARAMETERS_WITH_SCALER",
        (
            Exchange(
                "train.py", "    model.to(device)\n", "    model.to(device)\n    model.fc.half()\n"
            ),
        ),
        module="fc",
    ),
    Fault(
        "accelerate",
        24,
        "FULLY_MASKED_ROW",
        (
            Exchange(
                GPT,
                "\n    attn_weights = nn.functional.softmax(attn_weights, dim=-1)\n",
                "\n    attn_weights[:, :, 0] = float('-inf')\n"
                "    attn_weights = nn.functional.softmax(attn_weights, dim=-1)\n",
            ),
        ),
        "softmax",
        "transformer.h.0.attn",
    ),
    Fault(
        "accelerate",
        34,
        "NOTHING_TO_AVERAGE",
        (
            Exchange(
                "train.py",
                "    labels = tokens.clone()\n",
                "    labels = tokens.clone() if number != 5 else tokens.clone().fill_(-100)\n",
            ),
        ),
    ),
)


class Exchanged(MetaPathFinder):
    """Finds copies of modules instead of the modules.

    Args:
        copies: Their files, by name.
    """

    def __init__(self, copies: dict[str, str]) -> None:
        self._copies = copies

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the copy of a module, where there is one."""
        if name not in self._copies:
            return None
        return importlib.util.spec_from_file_location(name, self._copies[name])


def exchanged(text: str, exchange: Exchange) -> str:
    """Return the text with the exchange made."""
    if exchange.old not in text:
        raise SystemExit(f"{exchange.file} has no {exchange.old.strip()!r}: another version?")
    return text.replace(exchange.old, exchange.new)


def write_images(directory: Path) -> None:
    """Write some random images in six classes."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    for split in ("train", "val", "validation"):
        for kind in "abcdef":
            place = directory / split / kind
            place.mkdir(parents=True)
            for number in range(8):
                pixels = generator.integers(0, 255, (36, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def run(program: Program, checkout: Path | None, images: Path, fault: Fault | None) -> Outcome:
    """Run a program with a fault, or as it is, under doctor."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if checkout is None:
            (place / program.entry).write_text(ACCELERATED)
        else:
            for source in checkout.glob("*.py"):
                (place / source.name).write_text(source.read_text())
        copies: dict[str, str] = {}
        for each in (*program.base, *(fault.exchanges if fault else ())):
            if each.file.endswith(".py"):
                path = place / each.file
            else:
                path = place / f"exchanged_{each.file.replace('.', '_')}.py"
                if each.file not in copies:
                    found = importlib.util.find_spec(each.file)
                    assert found is not None
                    assert found.origin is not None
                    path.write_text(Path(found.origin).read_text())
                copies[each.file] = str(path)
            path.write_text(exchanged(path.read_text(), each))
        data = {"timm": "--data-dir", "torchvision": "--data-path"}.get(program.name)
        out = {"timm": "--output", "torchvision": "--output-dir"}.get(program.name)
        arguments = [
            *((data, str(images), out, str(place / "out")) if data and out else ()),
            *program.arguments,
            *(fault.arguments if fault else ()),
        ]
        (place / "out").mkdir()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TIMM_FUSED_ATTN": "0"}
        told = json.dumps([copies, str(place / "report"), program.entry, *arguments])
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--run", told],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        report = place / "report" / "diagnosis.json"
        if not report.exists():
            raise SystemExit(done.stdout + done.stderr)
        verdicts = json.loads(report.read_text())["diagnosis"]["verdicts"]
        if fault is None and done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return outcome(program, fault, verdicts)


def outcome(program: Program, fault: Fault | None, verdicts: list[dict[str, object]]) -> Outcome:
    """Compare verdicts with what was put in."""
    given = [str(each["code"]) for each in verdicts]
    if fault is None:
        return Outcome(program.name, None, "nothing", given)
    named = next((each for each in verdicts if each["code"] == fault.code), None)
    if named is None:
        return Outcome(program.name, fault.row, fault.code, given)
    finding = named["finding"]
    assert isinstance(finding, dict)
    site = finding["site"] or {"text": ""}
    return Outcome(
        program.name,
        fault.row,
        fault.code,
        given,
        site["text"],
        finding["module"],
        fault.line in site["text"] if fault.line else None,
        finding["module"].endswith(fault.module) if fault.module else None,
    )


def main() -> None:
    """Run all faults of the programs whose checkouts are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timm", type=Path, help="a checkout of pytorch-image-models")
    parser.add_argument("--torchvision", type=Path, help="the folder references of a checkout")
    parser.add_argument("--only", default="", help="a code")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        from halfstep.doctor.program import run_program

        copies, report, *command = json.loads(given.run)
        sys.meta_path.insert(0, Exchanged(copies))
        raise SystemExit(run_program(command, Path(report)))
    places = {
        "timm": given.timm,
        "torchvision": given.torchvision and given.torchvision / "classification",
    }
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        write_images(Path(name))
        for program in reversed(PROGRAMS.values()):
            if program.name == "accelerate":
                if not all(map(importlib.util.find_spec, ("accelerate", "transformers"))):
                    print("accelerate or transformers is not installed: left out")
                    continue
            elif places[program.name] is None:
                print(f"no --{program.name} is given: left out")
                continue
            mine = [each for each in FAULTS if each.program == program.name]
            for fault in (None, *mine):
                if given.only and (fault is None or fault.code != given.only):
                    continue
                done = run(program, places.get(program.name), Path(name), fault)
                outcomes.append(done)
                if not given.only:  # After each, so that an interrupted campaign leaves something.
                    record = {
                        "totals": totals(outcomes),
                        "outcomes": [asdict(each) for each in outcomes],
                    }
                    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
                print(
                    f"{done.program:12} {done.expected:32} {', '.join(done.given) or 'nothing':40} "
                    f"{done.module:24} {done.line[:60]}",
                    flush=True,
                )
    print(json.dumps(totals(outcomes), indent=1))


def totals(outcomes: list[Outcome]) -> dict[str, object]:
    """Count what doctor said rightly."""
    faulty = [each for each in outcomes if each.row is not None]
    whole = [each for each in outcomes if each.row is None]
    lines = [each.line_is_right for each in faulty if each.line_is_right is not None]
    modules = [each.module_is_right for each in faulty if each.module_is_right is not None]
    return {
        "faults": len(faulty),
        "rows": len({each.row for each in faulty}),
        "cause_named_first": sum(each.given[:1] == [each.expected] for each in faulty),
        "cause_named": sum(each.expected in each.given for each in faulty),
        "line_right": f"{sum(lines)} of {len(lines)}",
        "module_right": f"{sum(modules)} of {len(modules)}",
        "healthy_programs": len(whole),
        "false_alarms": sum(bool(each.given) for each in whole),
    }


if __name__ == "__main__":
    main()
