"""Every layer of `torch.nn` under every recipe on a CPU: as in fp32, or refused in clear words."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from halfstep.engine import Engine
from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.cuda_policy import cuda_autocast_policy
from halfstep.kernels.half_gaps import half_gaps_filled
from halfstep.recipe import RECIPES, Recipe

from .torch_layers import RANDOM, layer_classes, layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOSS_SCALE = {"init": 2.0**7}  # a loss inside the model is fp16, and so is its gradient
UNITS_OF_TOLERANCE = 32
"""How many roundings of the coarsest format an output or a gradient may be away, in norm."""
EPS = {"fp32": 2.0**-20, "tf32": 2.0**-10, "fp16": 2.0**-10, "bf16": 2.0**-7, "fp8-e4m3": 2.0**-6}
MOST = {"nvfp4": 0.5}  # its gradients are rounded at random to one of 15 values
EPS |= {"mxfp8": 2.0**-6, "mxfp4": 2.0**-2, "nvfp4": 2.0**-2}
REFUSED = {
    "BCELoss": ("autocast", "use binary_cross_entropy_with_logits on the values before"),
    "CTCLoss": ("params", r"write ctc_loss\(log_probs\.float\(\), \.\.\.\)"),
}
"""By the field of the recipes that refuse a layer."""


class Zoo(nn.Module):
    """Every layer, called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.cases = layers()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer, _ in self.cases.values())
        self.names = {name: place for place, name in enumerate(self.cases)}

    def forward(self, name: str, *inputs: Any) -> Any:
        return self.layers[self.names[name]](*inputs)


class Seen(NamedTuple):
    """What a layer made: outputs, and gradients of its first input and its parameters, in fp32."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor]


def floats(made: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of what a layer returned, packed sequences unpacked."""
    packed = made[0] if isinstance(made, tuple) and isinstance(made[0], PackedSequence) else None
    tree = made if packed is None else (packed.data, made[1])
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def loss_of(outputs: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(())
    for place, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(100 + place)
        total = total + (output.float() * torch.randn(output.shape, generator=generator)).mean()
    return total


def sweep(
    zoo: Zoo, forward: Callable[[str, tuple[Any, ...]], Any], backward: Callable[[Any], None]
) -> dict[str, Seen]:
    """Run every layer forward, and all of them backward at once."""
    outputs: dict[str, list[torch.Tensor]] = {}
    leaves: dict[str, list[torch.Tensor]] = {}
    losses = []
    for name, (_, (first, *others)) in zoo.cases.items():
        differentiable = isinstance(first, torch.Tensor) and first.is_floating_point()
        given = first.clone().requires_grad_() if differentiable else first
        torch.manual_seed(1)
        made = forward(name, (given, *others))
        if made is None:
            continue
        layer = zoo.layers[zoo.names[name]]
        leaves[name] = [*([given] if differentiable else []), *layer.parameters()]
        outputs[name] = floats(made)
        losses.append(loss_of(outputs[name]))
    if torch.is_grad_enabled():
        backward(torch.stack(losses).sum())
    return {
        name: Seen(
            [output.detach().float() for output in outputs[name]],
            [leaf.grad.float() for leaf in leaves[name] if leaf.grad is not None],
        )
        for name in outputs
    }


@pytest.fixture(autouse=True, scope="module")
def _registered_once() -> Iterator[None]:
    """Kernels that engines share, as registering them takes longer than a layer."""
    with cpu_half(), cuda_autocast_policy(), half_gaps_filled():
        yield


@pytest.fixture(scope="module")
def exact() -> dict[bool, dict[str, Seen]]:
    """What plain PyTorch makes in fp32, training and then evaluating."""
    zoo = Zoo()

    def forward(name: str, inputs: tuple[Any, ...]) -> Any:
        return zoo(name, *inputs)

    training = sweep(zoo, forward, lambda loss: loss.backward())
    zoo.zero_grad()
    with torch.no_grad():
        return {True: training, False: sweep(zoo.eval(), forward, lambda loss: None)}


def under(recipe: Recipe) -> dict[bool, dict[str, Seen]]:
    """Return what an engine makes under a recipe, training and then evaluating."""
    zoo = Zoo()
    changes = {"loss_scale": LOSS_SCALE} if recipe.loss_scale else {}
    optimizer = torch.optim.SGD(zoo.parameters(), lr=0.0)
    with Engine(zoo, optimizer, recipe={"base": recipe.name, **changes}) as engine:

        def forward(name: str, inputs: tuple[Any, ...]) -> Any:
            field, words = REFUSED.get(name, ("", ""))
            if field and getattr(recipe, field) not in (None, "fp32"):
                with pytest.raises(RuntimeError, match=words):
                    engine.model(name, *inputs)
                return None
            return engine.model(name, *inputs)

        with engine.autocast():
            scaled = sweep(zoo, forward, in_backward(engine))
        scale = engine.loss_scale
        training = {
            name: Seen(each.outputs, [grad / scale for grad in each.gradients])
            for name, each in scaled.items()
        }
        engine.zero_grad()
        with engine.evaluating():
            return {True: training, False: sweep(zoo, forward, lambda loss: None)}


def in_backward(engine: Engine) -> Callable[[torch.Tensor], None]:
    """Return `engine.backward`, outside of the autocast around it."""

    def backward(loss: torch.Tensor) -> None:
        with torch.autocast("cpu", enabled=False):
            engine.backward(loss)

    return backward


def faults(name: str, seen: Seen, exact: Seen, tolerance: float, *, training: bool) -> list[str]:
    """Return what of a layer is not as in fp32."""
    found = []
    for kind in ("outputs", "gradients"):
        ours, theirs = getattr(seen, kind), getattr(exact, kind)
        if [each.shape for each in ours] != [each.shape for each in theirs]:
            return [f"{name}: {len(ours)} {kind}, not {len(theirs)}"]
        most = max((each.norm() for each in theirs), default=0.0)
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            said = f"{name}, {'training' if training else 'evaluating'}: {kind}[{place}]"
            if not one.isfinite().all():
                found.append(f"{said} is not finite")
            if name in RANDOM and (training or "Fractional" in name):
                continue
            # A gradient that nearly vanishes has the rounding errors of those around it.
            error = float((one - other).norm() / max(other.norm(), 0.1 * most, 1e-4))
            if not error <= tolerance:
                found.append(f"{said} is {error:.3f} away")
    return found


def all_faults(recipe: Recipe, exact: dict[bool, dict[str, Seen]]) -> list[str]:
    eps = max(EPS[recipe.product_format], EPS[recipe.params or "fp32"])
    seen = under(recipe)
    return [
        fault
        for training, by_name in seen.items()
        for name, each in by_name.items()
        for fault in faults(
            name,
            each,
            exact[training][name],
            min(UNITS_OF_TOLERANCE * eps, MOST.get(recipe.name, 0.3)),
            training=training,
        )
    ]


def test_every_layer_class_of_torch_has_a_case() -> None:
    assert {name.partition(" ")[0] for name in layers()} == layer_classes()


# What only compresses activations is noisy on purpose (techniques/test_activations.py).
@pytest.mark.parametrize("name", [name for name, (row, _) in RECIPES.items() if row.params])
def test_every_layer_works_as_in_fp32_or_is_refused(name: str, exact) -> None:
    assert all_faults(RECIPES[name][0], exact) == []
