"""A language model trained by the Trainer of transformers in bf16, with evaluation and saving."""

from __future__ import annotations

import logging
import sys
import tempfile

import torch
from clock import mark
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS = int(sys.argv[1])
BATCH = 4
logging.disable(logging.WARNING)


class Tokens(torch.utils.data.Dataset):
    """Sequences of tokens."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        draws = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, 9, (48,), generator=draws).cumsum(0) % 200
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train for the steps of the command line."""
    mark("train")
    torch.manual_seed(0)
    sizes = {"n_embd": 96, "n_layer": 4, "n_head": 4, "n_positions": 64, "vocab_size": 200}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory,
            use_cpu=True,
            bf16=True,
            max_steps=STEPS,
            learning_rate=5e-4,
            warmup_steps=5,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=30,
            save_strategy="steps",
            save_steps=30,
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(
            model, arguments, train_dataset=Tokens(2 * BATCH * STEPS), eval_dataset=Tokens(40)
        ).train()
    mark("end")


main()
