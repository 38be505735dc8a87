"""The mechanisms behind the fields of a recipe, one file each, all on the seam in `base.py`.

Which field calls for which mechanism is the field's own affair (`halfstep.recipe.parts`). Loss
scaling stands apart: it is the primitive that the engine itself is built on.
"""

from halfstep.techniques.base import Stage, Technique
from halfstep.techniques.loss_scale import LossScaleCollapse, LossScaler, ScaleChange

__all__ = ["LossScaleCollapse", "LossScaler", "ScaleChange", "Stage", "Technique"]
