"""A GPT trained by a plain loop, as nanoGPT does: autocast, accumulation, estimates of the loss."""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from clock import mark
from torch import nn
from torch.nn import functional

STEPS = int(sys.argv[1])
BATCH, BLOCK, WIDTH, HEADS, LAYERS, VOCABULARY = 8, 64, 96, 4, 4, 128
ACCUMULATE, EVALUATE_EVERY, EVALUATIONS = 2, 25, 10
RATE, LEAST_RATE, WARMUP = 1e-3, 1e-4, 10


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.joint = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attended tokens, of shape (batch, tokens, width)."""
        batch, tokens, width = x.shape
        parts = self.joint(x).split(width, dim=2)
        query, key, value = (
            each.view(batch, tokens, HEADS, width // HEADS).transpose(1, 2) for each in parts
        )
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, tokens, width)
        return self.dropout(self.out(y))


class Block(nn.Module):
    """A layer: attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens after the layer."""
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """The language model, which computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                deviation = 0.02 / math.sqrt(2 * LAYERS) if name.endswith("out.weight") else 0.02
                nn.init.normal_(parameter, std=deviation)

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and loss."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
        return logits, loss


mark("train")
torch.manual_seed(1337)
text = np.random.default_rng(0).integers(0, 12, 100_000).cumsum() % VOCABULARY


def batch_of(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the tokens that follow them."""
    data = text[:90_000] if split == "train" else text[90_000:]
    starts = torch.randint(len(data) - BLOCK, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype(np.int64)) for i in starts])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in starts]
    )
    return x.to("cpu"), y.to("cpu")


def rate_at(step: int) -> float:
    """Return the learning rate of a step: warmup, then a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / max(1, STEPS - WARMUP)
    return LEAST_RATE + 0.5 * (1.0 + math.cos(math.pi * share)) * (RATE - LEAST_RATE)


model = GPT()
autocast = torch.amp.autocast("cpu", dtype=torch.bfloat16)
scaler = torch.amp.GradScaler("cpu", enabled=False)
decayed = [each for each in model.parameters() if each.dim() >= 2]
others = [each for each in model.parameters() if each.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))


@torch.no_grad()
def estimated_losses() -> dict[str, float]:
    """Return the mean loss of a few batches of each split."""
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(EVALUATIONS)
        for number in range(EVALUATIONS):
            x, y = batch_of(split)
            with autocast:
                _, loss = model(x, y)
            losses[number] = loss.item()
        out[split] = losses.mean().item()
    model.train()
    return out


x, y = batch_of("train")
best = 1e9
for step in range(STEPS + 1):
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    if step % EVALUATE_EVERY == 0:
        best = min(best, estimated_losses()["val"])
        if step > 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    for _ in range(ACCUMULATE):
        with autocast:
            logits, loss = model(x, y)
            loss = loss / ACCUMULATE
        x, y = batch_of("train")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if step % 10 == 0:
        print(step, loss.item() * ACCUMULATE)
mark("end")
