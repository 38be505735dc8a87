"""What a config may say about its classifier."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict, model_validator

from halfstep.train.config.section import Section


class ModelConfig(Section):
    """The classifier; its number of classes and of input channels come from the data."""

    name: str
    """A timm or torchvision classifier: "timm:resnet18", "torchvision:resnet18", or "resnet18",
    which is looked up in timm first; or a function of your own, "import:package.module:function",
    which is called with num_classes, in_chans and `args` and returns the model."""
    args: dict[str, Any] = Field({})
    """Further arguments of the model's constructor, passed on as they are."""
    pretrained: bool = False
    """Whether to start from the weights that timm or torchvision publish for the model. They are
    downloaded once; the classifier's last layer starts anew when the number of classes differs."""
    weights: str | None = None
    """A .safetensors or .pth file to start from instead, of which only tensors are read. The last
    layer starts anew when the number of classes differs; every other tensor must fit."""
    freeze: Annotated[tuple[str, ...], Strict(strict=False)] = ()
    """Parts that are not trained: names of modules or parameters, with * and ? as in file names
    ("layer1", "blocks.[0-3]", "*.bias"). Norm layers in them keep the statistics that they have."""
    channels_last: bool = False
    """Whether convolutions keep their weights with the channels last, which is faster for half
    precision on a GPU."""
    checkpoint_activations: bool = False
    """Whether the activations of each block are computed again in the backward, which takes time
    and saves memory; what is learned is the same."""
    compile: bool = False
    """Whether `torch.compile` makes the model's own kernels, at the first step."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ModelConfig:
        if self.checkpoint_activations and self.compile:
            raise ValueError(
                "checkpoint_activations and compile are both true, but the compiler decides by "
                "itself what is kept for the backward; write one of them"
            )
        if self.pretrained and self.weights is not None:
            raise ValueError(
                "pretrained is true and weights is given; write pretrained: false to read the file"
            )
        if self.pretrained and self.name.startswith("import:"):
            raise ValueError(
                "pretrained is true, but weights are published for timm's and torchvision's models "
                "only; write weights: FILE, or load them in your function"
            )
        return self
