"""Two towers trained by a contrastive loss, as open_clip does: AdamW, a learnt temperature."""

from __future__ import annotations

import math
import sys
import time

import torch
from clock import mark
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
BATCH, WIDTH, SHARED, TOKENS, VOCABULARY = 16, 96, 64, 24, 200


class Pairs(Dataset):
    """Images with the tokens of a caption."""

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        draws = torch.Generator().manual_seed(number % 64)
        image = torch.rand(3, 40, 40, generator=draws)
        image = functional.interpolate(image[None], size=(48, 48), mode="bicubic")[0].clamp(0, 1)
        image = (image - torch.tensor([0.48, 0.46, 0.41])[:, None, None]) / 0.27
        tokens = torch.zeros(TOKENS, dtype=torch.long)
        words = torch.randint(2, VOCABULARY - 1, (TOKENS - 4,), generator=draws)
        tokens[: len(words)] = words
        tokens[len(words)] = VOCABULARY - 1
        return image, tokens


class Layer(nn.Module):
    """A layer of a transformer, with torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the tokens after the layer."""
        y = self.norm_1(x)
        x = x + self.attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.norm_2(x))


class Clip(nn.Module):
    """A vision transformer and a text transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8, bias=False)
        self.image_class = nn.Parameter(torch.randn(WIDTH) * WIDTH**-0.5)
        self.image_positions = nn.Parameter(torch.randn(37, WIDTH) * WIDTH**-0.5)
        self.image_layers = nn.ModuleList(Layer() for _ in range(3))
        self.image_norm = nn.LayerNorm(WIDTH)
        self.image_out = nn.Parameter(torch.randn(WIDTH, SHARED) * WIDTH**-0.5)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.text_positions = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.01)
        self.text_layers = nn.ModuleList(Layer() for _ in range(3))
        self.text_norm = nn.LayerNorm(WIDTH)
        self.text_out = nn.Parameter(torch.randn(WIDTH, SHARED) * WIDTH**-0.5)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))
        mask = torch.full((TOKENS, TOKENS), float("-inf")).triu_(1)
        self.register_buffer("mask", mask, persistent=False)

    def encode_image(self, image: torch.Tensor) -> torch.Tensor:
        """Return normalised features of images."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.image_class.expand(len(x), 1, -1), x], dim=1) + self.image_positions
        for layer in self.image_layers:
            x = layer(x, None)
        return functional.normalize(self.image_norm(x[:, 0]) @ self.image_out, dim=-1)

    def encode_text(self, text: torch.Tensor) -> torch.Tensor:
        """Return normalised features of captions."""
        x = self.tokens(text) + self.text_positions
        for layer in self.text_layers:
            x = layer(x, self.mask)
        x = self.text_norm(x)[torch.arange(len(x)), text.argmax(dim=-1)]
        return functional.normalize(x @ self.text_out, dim=-1)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the features and the scale of the logits."""
        return {
            "image_features": self.encode_image(image),
            "text_features": self.encode_text(text),
            "logit_scale": self.logit_scale.exp(),
        }


class ClipLoss(nn.Module):
    """The contrastive loss in both directions."""

    def forward(
        self, image_features: torch.Tensor, text_features: torch.Tensor, logit_scale: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the loss by its name."""
        logits = logit_scale * image_features @ text_features.T
        labels = torch.arange(len(logits))
        both = functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)
        return {"contrastive_loss": both / 2}


class Meter:
    """A running mean."""

    def __init__(self) -> None:
        self.value = self.sum = self.count = 0.0

    def update(self, value: float, number: int = 1) -> None:
        """Add a value."""
        self.value, self.sum, self.count = value, self.sum + value * number, self.count + number


def main() -> None:
    """Train for the steps of the command line, with an evaluation every 30 steps."""
    mark("train")
    torch.manual_seed(0)
    model, loss_function = Clip(), ClipLoss()
    named = [*model.named_parameters()]
    gains = [each for name, each in named if each.ndim < 2 or "norm" in name]
    rest = [each for name, each in named if not (each.ndim < 2 or "norm" in name)]
    optimizer = torch.optim.AdamW(
        [{"params": gains, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.2}],
        lr=5e-4,
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    loader = DataLoader(Pairs(), BATCH, shuffle=True, drop_last=True)
    losses, seconds = {}, Meter()
    began = time.time()
    for step, (images, texts) in enumerate(loader):
        warm = min(1.0, (step + 1) / 10)
        for group in optimizer.param_groups:
            group["lr"] = 5e-4 * warm * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        images = images.to("cpu", non_blocking=True)  # noqa: PLW2901  # as there
        texts = texts.to("cpu", non_blocking=True)  # noqa: PLW2901
        seconds.update(time.time() - began)
        optimizer.zero_grad()
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):
            out = model(images, texts)
            parts = loss_function(**out)
            total = sum(parts.values())
            parts["loss"] = total
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        for name, value in parts.items():
            losses.setdefault(name, Meter()).update(value.item(), len(images))
        if step % 10 == 0:
            print(step, {name: each.value for name, each in losses.items()})
        if step % 30 == 29:
            model.eval()
            with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.bfloat16):
                out = model(images, texts)
                scores = 100 * out["image_features"].float() @ out["text_features"].float().T
                ranks = scores.argsort(descending=True)
                place = torch.where(ranks == torch.arange(len(ranks))[:, None])[1]
                print({f"R@{k}": (place < k).float().mean().item() for k in (1, 5)})
            model.train()
        began = time.time()
    mark("end")


main()
