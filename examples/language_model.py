"""A language model with `halfstep.fit`: batches are dictionaries, and the loss takes the model.

python examples/language_model.py
"""

from __future__ import annotations

import math
import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import halfstep

TEXT = "the quick brown fox jumps over the lazy dog while the five boxing wizards watch. " * 8
CHARACTERS = sorted(set(TEXT))
CONTEXT = 32


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Windows of the text, each with the characters that follow."""

    def __init__(self, start: int, end: int) -> None:
        self.tokens = torch.tensor([CHARACTERS.index(each) for each in TEXT[start:end]])

    def __len__(self) -> int:
        return len(self.tokens) - CONTEXT

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        window = self.tokens[at : at + CONTEXT + 1]
        return {"input_ids": window[:-1], "labels": window[1:]}


class Model(nn.Module):
    """A recurrent network that predicts the next character."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), width)
        self.layer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, context, characters)."""
        return self.head(self.layer(self.embedding(tokens))[0])


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy of the next characters.

    A model of the library transformers computes it itself: `return model(**batch).loss`.
    """
    logits = model(batch["input_ids"])
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())


def main() -> Any:
    """Train, print the perplexity, and return the result."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    train_loader = DataLoader(Windows(0, 500), 32, shuffle=True)
    epochs = 2
    with tempfile.TemporaryDirectory() as out:
        fitted = halfstep.fit(
            model,
            optimizer,
            train_loader,
            DataLoader(Windows(500, len(TEXT)), 64),
            loss=loss,
            recipe="bf16",
            clip_norm=1.0,
            scheduler=torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 0.02, total_steps=epochs * len(train_loader)
            ),
            epochs=epochs,
            out=out,
        )
    print(f"perplexity {math.exp(fitted.best['loss']):.2f} of {len(CHARACTERS)} characters")
    return fitted


if __name__ == "__main__":
    main()
