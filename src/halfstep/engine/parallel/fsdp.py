"""Models sharded over processes with FSDP2 (`fully_shard`), under a recipe.

The sharded parameters stay fp32 and serve as the master weights. FSDP2 gathers the half parameters
for computation from them, block by block. So the optimizer must be built after `shard`, over the
sharded parameters, and the techniques that change parameters are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from halfstep.engine.parallel.wrappers import refuse_wrapped
from halfstep.engine.recompute import outermost, recompute
from halfstep.formats import torch_dtype
from halfstep.layers.sync_batchnorm import synchronize_batchnorm
from halfstep.mechanisms.params.technique import cast_at_change, format_changes, own_tensors, recast
from halfstep.recipe import Recipe
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from halfstep.mechanisms.technique import Technique

_recipes: WeakKeyDictionary[nn.Module, Recipe] = WeakKeyDictionary()


def shard(
    model: nn.Module,
    recipe: str | Path | Recipe | Mapping[str, Any],
    *,
    mesh: DeviceMesh | None = None,
    blocks: Callable[[nn.Module], bool] | None = None,
    checkpoint_activations: bool = False,
    sync_batchnorm: bool = False,
    reshard_after_forward: bool = True,
) -> nn.Module:
    """Shard the parameters of a model over all processes with FSDP2, under a recipe.

    ```python
    model = halfstep.shard(model, "o2")
    optimizer = torch.optim.AdamW(model.parameters())
    engine = halfstep.Engine(model, optimizer, recipe="o2")
    ```

    Args:
        model: The unwrapped model on its device, identical on every process; changed in place.
        recipe: As in `Engine`. Pass the same recipe to the engine.
        mesh: Device mesh of the processes; all processes by default.
        blocks: Returns whether a module is a block, whose parameters are gathered and freed
            together. By default the children of the outermost `nn.Sequential` and
            `nn.ModuleList` are the blocks.
        checkpoint_activations: Recompute the activations of each block in the backward pass.
        sync_batchnorm: Synchronize the statistics of BatchNorm across processes.
        reshard_after_forward: Free a block's gathered parameters after its forward pass, and
            gather them again for its backward pass.

    Returns:
        The model.

    Raises:
        ValueError: If the recipe has half-precision parameters without fp32 master weights, if the
            model is already wrapped or sharded, or if activations are to be recomputed and the
            model has no blocks.
        RuntimeError: If there is no process group.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    found = find_recipe(recipe)
    _refuse(model, found)
    device = next(model.parameters()).device
    if mesh is None:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    if sync_batchnorm:
        model = synchronize_batchnorm(model, mesh.get_group() if mesh.ndim == 1 else None)
    _widen(model, found)
    units = [m for m in model.modules() if blocks(m)] if blocks else list(outermost(model))
    if checkpoint_activations:
        recompute(model, units if blocks else None)
    policies = dict.fromkeys(units, _policy(found, root=False))
    policies |= _own_policies(model, found, units)
    for module in reversed(list(model.modules())):  # inner modules first
        if module is not model and module in policies and any(True for _ in module.parameters()):
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=policies[module],
                reshard_after_forward=reshard_after_forward,
            )
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=_policy(found, root=True),
        reshard_after_forward=reshard_after_forward,
    )
    _recipes[model] = found
    return model


def sharded_as(model: nn.Module) -> Recipe | None:
    """Return the recipe with which `shard` sharded a model, or None."""
    return _recipes.get(model)


def refuse_other_recipe(models: Sequence[nn.Module], recipe: Recipe) -> None:
    """Refuse a recipe other than the one that a model was sharded for."""
    for model in models:
        made_for = sharded_as(model)
        if made_for is not None and made_for.settings() != recipe.settings():
            raise ValueError(
                f"the model was sharded for recipe {made_for.name!r}, and the engine is given "
                f"{recipe.name!r}; write Engine(model, optimizer, recipe={made_for.name!r})"
            )


def refuse_limited_backward(*, of_all: bool) -> None:
    """Refuse to limit a backward to some of the parameters that FSDP2 shards.

    Autograd knows only the gathered parameters, not the sharded parameters that an optimizer holds.
    If `of_all` is True, the backward is limited to all parameters, which is no limit.
    """
    if not of_all:
        raise RuntimeError(
            "engine.backward(optimizers=[...]) cannot be limited under halfstep.shard; leave "
            "optimizers out and detach() tensors that the loss must not reach, or write "
            "Engine(..., parallel='ddp')"
        )


def left_to_do(techniques: Sequence[Technique]) -> list[Technique]:
    """Return the techniques that are still needed for a sharded model."""
    return [technique for technique in techniques if not technique.done_by_sharding]


def _refuse(model: nn.Module, recipe: Recipe) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "halfstep.shard needs processes to share the model among; write "
            "torch.distributed.init_process_group() first, and start the program by torchrun"
        )
    refuse_wrapped([model], recipe.name)
    reason = recipe.refusal("fully_shard")
    if reason:
        raise ValueError(
            f"recipe {recipe.name!r} cannot be sharded: {reason}; write recipe='o2' or "
            f"{{'base': {recipe.name!r}, 'master_weights': True, 'update': None}}, or "
            "Engine(..., parallel='ddp')"
        )


def _widen(model: nn.Module, recipe: Recipe) -> None:
    """Cast parameters to fp32, and buffers to the format that the recipe gives them."""
    buffers = recipe.sharding.get("buffers")
    if buffers is None:
        return
    own = own_tensors(recipe.own_formats(model))
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            is_param = isinstance(tensor, nn.Parameter)
            wanted = torch.float32 if is_param else own.get(tensor, torch_dtype(buffers))
            if tensor.dtype != wanted:
                recast(tensor, wanted)


def _policy(recipe: Recipe, *, root: bool) -> MixedPrecisionPolicy:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    dtypes = {name: torch_dtype(format_) for name, format_ in recipe.sharding.items()}
    return MixedPrecisionPolicy(
        param_dtype=dtypes.get("compute"),
        reduce_dtype=dtypes.get("reduce"),
        output_dtype=dtypes.get("outputs") if root else None,
        cast_forward_inputs=root and "compute" in dtypes,
    )


def _own_policies(
    model: nn.Module, recipe: Recipe, units: Sequence[nn.Module]
) -> dict[nn.Module, MixedPrecisionPolicy]:
    """Return the FSDP2 policies of modules and `units` that have a format of their own.

    Hooks of halfstep cast the inputs and outputs of these modules, because FSDP2 omits its own
    casts when activations are recomputed (torch 2.11).
    """
    compute = recipe.sharding.get("compute")
    if compute is None:
        return {}  # all parameters are fp32; autocast has its own exceptions
    own_formats = recipe.own_formats(model)
    gathered = {unit for unit in units if unit in own_formats}
    for module, inside, around in format_changes(model, own_formats, compute):
        cast_at_change(module, inside, around)
        gathered.add(module)
    return {module: _own_policy(own_formats[module]) for module in gathered}


def _own_policy(format_: str) -> MixedPrecisionPolicy:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(
        param_dtype=None if format_ == "fp32" else torch_dtype(format_),
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
