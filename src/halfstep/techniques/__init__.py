"""The mechanisms behind the fields of a recipe, one file each, all on the seam in `base.py`.

`techniques_for` is the only place that knows which field of a recipe calls for which mechanism.
Loss scaling stands apart: it is the primitive that the engine itself is built on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.techniques.accumulation import Fp16Accumulation
from halfstep.techniques.autocast import Autocast
from halfstep.techniques.base import Technique
from halfstep.techniques.cpu_half import CpuHalf
from halfstep.techniques.float8 import Float8Layers
from halfstep.techniques.gradients import GradientFormat
from halfstep.techniques.loss_scale import LossScaleCollapse, LossScaler, ScaleChange
from halfstep.techniques.master import MasterWeights
from halfstep.techniques.matmul import MatmulPrecision
from halfstep.techniques.params import ParameterFormat
from halfstep.techniques.rounding import RoundedUpdate

if TYPE_CHECKING:
    from halfstep.recipe import Recipe

__all__ = ["LossScaleCollapse", "LossScaler", "ScaleChange", "Technique", "techniques_for"]


def techniques_for(recipe: Recipe, *, seed: int = 0) -> list[Technique]:
    """Return the techniques that carry out `recipe`, in the order in which they are applied.

    Args:
        recipe: What to carry out.
        seed: Seed of the random numbers that stochastic rounding draws.
    """
    half = recipe.half_params
    found: list[Technique] = []
    # Those that may refuse a model or an optimizer come before those that change it.
    if half:
        found.append(GradientFormat(recipe.gradients or half, narrow=recipe.update is None))
    if recipe.update:
        found.append(RoundedUpdate(recipe.update, seed=seed))
    if recipe.master_weights:
        found.append(MasterWeights(recipe.params, norms=recipe.norms))
    if recipe.params:
        found.append(ParameterFormat(recipe.params, norms=recipe.norms, outputs=recipe.outputs))
    if recipe.matmul:
        found.append(MatmulPrecision(recipe.matmul))
    if half or recipe.autocast:
        found.append(CpuHalf(autocast=recipe.autocast is not None))
    if recipe.accumulation:  # after CpuHalf, whose fp16 products it takes over
        found.append(Fp16Accumulation())
    if recipe.float8:
        found.append(Float8Layers(recipe.float8))
    if recipe.autocast:
        found.append(Autocast(recipe.autocast))
    return found
