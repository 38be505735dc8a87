"""A small GPT in a plain torch.amp loop that hardly learns, although nothing becomes NaN.

A `Trainer` object owns the model, optimizer and scaler, trains under fp16 autocast, and saves a
snapshot to resume from. It has the two mistakes of PyTorch's `distributed/minGPT-ddp` example: it
clips gradients that are still multiplied by the loss scale, so that a limit of 1 acts like a limit
of 1/65536, and it does not save the scaler in the snapshot.

    python examples/character_gpt.py            # with the mistakes
    python examples/character_gpt.py --mended   # without them
    halfstep doctor examples/character_gpt.py   # names the two lines
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

TEXT = "the quick brown fox jumps over the lazy dog while the five boxing wizards watch. " * 8
CONTEXT = 32
BATCH = 16
STEPS = 25
EPOCHS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each with a norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.network = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return new features, shape (batch, context, width)."""
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, normed, attn_mask=later, need_weights=False)[0]
        return x + self.network(x)


class GPT(nn.Module):
    """Predicts the next character.

    Args:
        characters: Number of different characters.
        width: Number of features.
    """

    def __init__(self, characters: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of tokens and the next tokens, shapes (batch, context)."""
        features = self.blocks(self.embedding(tokens) + self.position)
        return F.cross_entropy(self.head(features).flatten(0, 1), targets.flatten())


class Trainer:
    """Trains a model, and resumes from its snapshot if there is one.

    Args:
        tokens: The text, shape (length,).
        characters: Number of different characters in the text.
        snapshot: The file.
        mended: Whether clipping and snapshot are correct.
    """

    def __init__(
        self, tokens: torch.Tensor, characters: int, snapshot: Path, *, mended: bool
    ) -> None:
        torch.manual_seed(0)
        self.tokens, self.snapshot, self.mended = tokens, snapshot, mended
        self.model = GPT(characters).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        self.scaler = torch.amp.GradScaler(DEVICE)
        self.epochs_run = 0
        if snapshot.exists():
            self.load()

    def load(self) -> None:
        """Resume from the snapshot."""
        state = torch.load(self.snapshot, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs_run = state["finished_epoch"] + 1
        if self.mended:
            self.scaler.load_state_dict(state["scaler"])

    def save(self, epoch: int) -> None:
        """Write the snapshot."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "finished_epoch": epoch,
        }
        if self.mended:
            state["scaler"] = self.scaler.state_dict()
        torch.save(state, self.snapshot)

    def run_batch(self, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """Train on one batch and return its loss."""
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = self.model(tokens, targets)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if self.mended:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def train(self, epochs: int) -> list[float]:
        """Train up to a number of epochs and return the loss of every step."""
        losses = []
        for epoch in range(self.epochs_run, epochs):
            starts = torch.randint(len(self.tokens) - CONTEXT - 1, (STEPS, BATCH))
            for batch in starts:
                windows = torch.stack([self.tokens[each : each + CONTEXT + 1] for each in batch])
                losses.append(self.run_batch(windows[:, :-1], windows[:, 1:]))
            self.save(epoch)
        return losses


def main(arguments: list[str] | None = None) -> list[float]:
    """Train, print the first and the last loss, and return the loss of every step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mended", action="store_true", help="without the two mistakes")
    mended = parser.parse_args(arguments).mended
    characters = sorted(set(TEXT))
    tokens = torch.tensor([characters.index(each) for each in TEXT], device=DEVICE)
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / "snapshot.pt"
        losses = Trainer(tokens, len(characters), snapshot, mended=mended).train(EPOCHS)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {len(losses)} steps")
    return losses


if __name__ == "__main__":
    main()
