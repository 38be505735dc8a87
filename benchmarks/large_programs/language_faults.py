"""Faults in a language model of transformers that Accelerate trains, and in transformers."""

# Text that is exchanged stays in the lines that it has.

from __future__ import annotations

from large_programs.faults import Exchange, Fault, Program

GPT = "transformers.models.gpt2.modeling_gpt2"
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
PROGRAM = Program("accelerate", "train.py", text=ACCELERATED)

FAULTS = (
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
