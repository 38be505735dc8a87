"""What is trained in a measured step, and how: models, settings, and what a variant is given."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import timm
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steps.turns import Turns

    Window = list[tuple[torch.Tensor, torch.Tensor]]
    """The batches of a step: images, and int64 labels."""

ACCUMULATE = 4
IMAGES = 1440  # about as many as the digits have for training
CLIP = 1.0
SGD = {"lr": 1e-3, "momentum": 0.9}


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        name: In timm; "" for the MLP.
        args: Its arguments there.
        pixels: Height and width of an image, which has one channel.
        batch: Images of a batch.
        steps: Measured in a turn.
    """

    name: str
    args: dict[str, Any]
    pixels: int
    batch: int
    steps: int

    def build(self, num_classes: int = 10, in_chans: int = 1) -> nn.Module:
        """Return the model."""
        torch.manual_seed(0)
        if self.name:
            return timm.create_model(
                self.name, num_classes=num_classes, in_chans=in_chans, **self.args
            )
        sizes = (in_chans * self.pixels**2, 128, 64)
        layers = [nn.Linear(*sizes[:2]), nn.ReLU(), nn.Linear(*sizes[1:]), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, num_classes))


DIGITS_RESNET = {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 64], "output_stride": 16}
SMALL_VIT = {"img_size": 32, "patch_size": 4, "depth": 4, "embed_dim": 96}
MODELS = {
    "mlp": Model("", {}, 8, 32, 200),
    "digits ResNet": Model("resnet18", DIGITS_RESNET, 24, 32, 3),
    "resnet18, 32 px": Model("resnet18", {}, 32, 16, 2),
    "resnet18, 64 px": Model("resnet18", {}, 64, 16, 1),
    "small ViT, 32 px": Model("vit_tiny_patch16_224", SMALL_VIT, 32, 16, 1),
}


@dataclass(frozen=True)
class Setting:
    """How it is trained."""

    recipe: str
    clips: bool = False
    accumulates: bool = False

    @property
    def clip(self) -> float | None:
        """Largest norm of the gradients; None where they are not clipped."""
        return CLIP if self.clips else None

    @property
    def micro_steps(self) -> int:
        """Batches to a step."""
        return ACCUMULATE if self.accumulates else 1


SETTINGS = {
    "fp32": Setting("fp32"),
    "fp32, clipping": Setting("fp32", clips=True),
    f"fp32, {ACCUMULATE} micro-steps": Setting("fp32", accumulates=True),
    "bf16": Setting("bf16"),
    "fp16": Setting("fp16"),
    "fp16, clipping": Setting("fp16", clips=True),
    "o2": Setting("o2"),
}


def mlp(num_classes: int, in_chans: int) -> nn.Module:
    """Return the MLP, for configs."""
    return MODELS["mlp"].build(num_classes, in_chans)


@dataclass(frozen=True)
class Task:
    """What a variant is given."""

    model: Model
    setting: Setting
    turns: Turns

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches of images and labels without end, from a DataLoader in this process."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(IMAGES, 1, *[self.model.pixels] * 2, generator=generator)
        labels = torch.randint(10, (IMAGES,), generator=generator)
        loader = DataLoader(
            TensorDataset(images, labels), batch_size=self.model.batch, shuffle=True, drop_last=True
        )
        while True:
            for images, labels in loader:
                yield images, labels

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and an optimizer."""
        model = self.model.build()
        return model, torch.optim.SGD(model.parameters(), **SGD)

    def forever(self, step: Callable[[Window], None]) -> None:
        """Take steps, each of a window of batches, whenever it is the variant's turn."""
        batches, count = self.batches(), self.setting.micro_steps
        while True:
            window = list(islice(batches, count))
            self.turns.begin()
            step(window)
            self.turns.end()
