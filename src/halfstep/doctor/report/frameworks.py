"""Words for a loop that a framework runs: what the user can change are the framework's settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.doctor.record import Evidence

_ACTIONS = ("backward", "step", "scaler step", "zero")

# What a change is about, by the functions that occur in it; the first that fits counts.
_SUBJECTS = (
    ("clip", r"clip_grad|clip\("),
    ("schedule", r"schedule"),
    ("precision", r"autocast|GradScaler|scaler\.|unscale_|\.half\(|bfloat16|float16"),
    ("accumulate", r"zero_grad|micro_batch|accumul"),
    ("rate", r"\blr="),
)
_LIGHTNING = {
    "clip": "give Trainer the argument gradient_clip_val=1.0; it clips unscaled gradients",
    "precision": 'give Trainer the argument precision="16-mixed" or "bf16-mixed", and the model '
    "fp32 parameters",
    "accumulate": "give Trainer the argument accumulate_grad_batches",
    "schedule": 'return {"scheduler": scheduler, "interval": "step"} or "epoch" for the schedule '
    "from configure_optimizers",
    "rate": "give the optimizer in configure_optimizers a lower learning rate",
}
_TRANSFORMERS = {
    "clip": "give TrainingArguments the argument max_grad_norm=1.0; Trainer clips unscaled "
    "gradients",
    "precision": "give TrainingArguments the argument fp16=True or bf16=True, and the model fp32 "
    "parameters",
    "accumulate": "give TrainingArguments the argument gradient_accumulation_steps",
    "schedule": "give TrainingArguments the arguments lr_scheduler_type and warmup_steps",
    "rate": "give TrainingArguments a lower learning_rate",
}
_ACCELERATE = {
    "clip": "write accelerator.clip_grad_norm_(model.parameters(), 1.0) after "
    "accelerator.backward(loss), where accelerator.sync_gradients is true; it unscales the "
    "gradients first",
    "precision": 'give Accelerator the argument mixed_precision="fp16" or "bf16", and write '
    "accelerator.backward(loss) for loss.backward()",
    "accumulate": "give Accelerator the argument gradient_accumulation_steps, and write the step "
    "inside `with accelerator.accumulate(model):`",
    "schedule": "give the scheduler to accelerator.prepare(), which leaves out skipped steps",
}
_FRAMEWORKS = {
    "lightning": ("Lightning", _LIGHTNING),
    "pytorch_lightning": ("Lightning", _LIGHTNING),
    "transformers": ("Hugging Face's Trainer", _TRANSFORMERS),
    "accelerate": ("Accelerate", _ACCELERATE),
}


def is_driven(evidence: Evidence, lines: Iterable[str]) -> bool:
    """Return whether one of these lines runs the whole loop, such as `trainer.fit(model)`.

    Such a line is the place of different actions. To move or replace it changes none of them.
    """
    kinds: dict[str, set[str]] = {}
    for kind in _ACTIONS:
        for _, event in evidence.loop.of(kind):
            if event.site is not None:
                kinds.setdefault(event.site.text, set()).add(kind)
    return any(len(kinds.get(each, ())) > 1 and not _acts(each) for each in lines)


def _acts(line: str) -> bool:
    """Return whether a line contains the calls of several actions itself."""
    return len(re.findall(r"\.(?:backward|step|zero_grad)\(", line)) > 1


def in_its_words(lines: list[str], evidence: Evidence) -> list[str]:
    """Return a change in the words of the framework that makes the steps; empty without one."""
    name, settings = _FRAMEWORKS.get(evidence.environment.framework, ("", {}))
    text = "\n".join(lines)
    for subject, pattern in _SUBJECTS:
        if subject in settings and re.search(pattern, text):
            return [f"with {name}: {settings[subject]}"]
    return []
