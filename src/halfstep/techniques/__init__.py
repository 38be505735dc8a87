"""The mechanisms behind the fields of a recipe, one file each, with the base class in `base.py`.

The fields (`halfstep.recipe.parts`) build their techniques. Loss scaling is not a technique, but a
primitive on which the engine is built.
"""

from halfstep.techniques.base import Stage, Technique
from halfstep.techniques.loss_scale import LossScaleCollapse, LossScaler, ScaleChange

__all__ = ["LossScaleCollapse", "LossScaler", "ScaleChange", "Stage", "Technique"]
