"""The twenty models of advise_memory.py, each with two samples: small images or short sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import timm
import torch
from torch import nn
from torch.nn import functional

from halfstep.advise.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES, VOCABULARY, LENGTH = 10, 64, 32


class Recurrent(nn.Module):
    """Two recurrent layers and a linear layer, for inputs of shape (N, 32, 24)."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.recurrent = kind(24, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last time step."""
        return self.head(self.recurrent(values)[0][:, -1])


class Graph(nn.Module):
    """Three rounds of message passing on a ring of 32 nodes, with BatchNorm, for (N, 32, 24)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 48)
        self.messages = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(LENGTH) for _ in range(3))
        self.head = nn.Linear(48, CLASSES)
        ring = torch.eye(LENGTH).roll(1, 0) + torch.eye(LENGTH).roll(-1, 0)
        self.register_buffer("adjacency", ring / 2)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.embed(nodes)
        for message, norm in zip(self.messages, self.norms, strict=True):
            hidden = hidden + functional.silu(norm(message(self.adjacency @ hidden)))
        return self.head(hidden.mean(1))


class Gpt(nn.Module):
    """Four causal transformer blocks, for tokens of shape (N, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 64), nn.Embedding(LENGTH, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in range(4)
        )
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next tokens."""
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(self.norm(hidden))


class Unet(nn.Module):
    """A small U-Net with GroupNorm and one skip connection, for images of shape (N, 3, 32, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = self._block(3, 16), self._block(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last, self.head = self._block(32, 16), nn.Conv2d(16, 3, 1)

    @staticmethod
    def _block(wide: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(wide, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of the same shape."""
        first = self.first(images)
        down = self.down(functional.max_pool2d(first, 2))
        return self.head(self.last(torch.cat([first, self.up(down)], 1)))


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(layer for wide in (24, 256, 256) for layer in (nn.Linear(wide, 256), nn.GELU())),
        nn.Dropout(0.1),
        nn.Linear(256, CLASSES),
    )


def _timm(name: str, **given: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=CLASSES, **given)


OWN: dict[str, Callable[[], nn.Module]] = {
    "mlp": _mlp,
    "rnn": lambda: Recurrent(nn.RNN),
    "graph": Graph,
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "gpt": Gpt,
    "unet": Unet,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        name: _timm(name)
        for name in (
            *("resnet18", "dla46_c", "regnetx_002"),
            *("mobilenetv3_small_050", "efficientnet_b0", "ghostnet_050", "convnext_atto"),
            "poolformer_s12",
        )
    },
    **{
        name: _timm(name, img_size=64)
        for name in ("vit_tiny_patch16_224", "mixer_s32_224", "resmlp_12_224", "cait_xxs24_224")
    },
    "swin_tiny_patch4_window7_224": _timm(
        "swin_tiny_patch4_window7_224", img_size=64, window_size=2
    ),
    **OWN,
}


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    found = model(batch[0])
    if batch[1].is_floating_point():
        return functional.mse_loss(found.float(), batch[1])
    return functional.cross_entropy(found.flatten(0, -2), batch[1].flatten())


def _batch(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.zeros(2, dtype=torch.int64)
    if name == "gpt":
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if name == "unet":
        return torch.randn(2, 3, 32, 32), torch.randn(2, 3, 32, 32)
    if name == "mlp":
        return torch.randn(2, 24), labels
    if name in OWN:
        return torch.randn(2, LENGTH, 24), labels
    return torch.randn(2, 3, 64, 64), labels


def subject(name: str) -> Subject:
    """Return a model with two random samples."""
    torch.manual_seed(0)
    return Subject(
        name,
        MODELS[name](),
        _loss,
        [_batch(name)],
        lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
    )
