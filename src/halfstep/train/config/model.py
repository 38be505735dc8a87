"""The config section of the classifier."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Strict, model_validator

from halfstep.train.config.section import Section


class ModelConfig(Section):
    """The classifier. The data determines the numbers of classes and input channels."""

    name: str
    """A timm or torchvision classifier: "timm:resnet18", "torchvision:resnet18", or "resnet18",
    which is looked up in timm first; or "halfstep:resnet9", for images of 32 pixels. Or your own
    function, "import:package.module:function", which is called with num_classes, in_chans and
    `args` and returns the model."""
    args: dict[str, Any] = Field({})
    """More arguments for the model's constructor."""
    pretrained: bool = False
    """Whether to start from the pretrained weights of timm or torchvision. They are downloaded
    once. If the number of classes differs, the last layer is initialized randomly."""
    weights: str | None = None
    """A .safetensors or .pth file to start from instead; only its tensors are read. If the number
    of classes differs, the last layer is initialized randomly; every other tensor must fit."""
    freeze: Annotated[tuple[str, ...], Strict(strict=False)] = ()
    """Parts that are not trained: names of modules or parameters, with wildcards as in file names
    ("layer1", "blocks.[0-3]", "*.bias"). Frozen norm layers do not update their statistics."""
    channels_last: bool = False
    """Whether to use the channels-last memory format, which is faster for half precision on a
    GPU."""
    checkpoint_activations: bool = False
    """Whether to recompute the activations of each block in the backward pass (activation
    checkpointing). This saves memory and takes time; training results do not change."""
    compile: bool = False
    """Whether to compile the model with `torch.compile`, at the first step, and to update all
    parameters in one kernel. On a CPU, very small models are not compiled."""

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
