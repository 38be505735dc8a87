"""NVIDIA Apex's `amp`, on any device and without compiled code.

```python
from halfstep.apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
optimizer.step()
```
"""

from halfstep.apex.amp._amp_state import _amp_state as _amp_state
from halfstep.apex.amp._amp_state import master_params
from halfstep.apex.amp.casts import (
    float_function,
    half_function,
    init,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from halfstep.apex.amp.checkpoint import load_state_dict, state_dict
from halfstep.apex.amp.frontend import initialize
from halfstep.apex.amp.handle import disable_casts, scale_loss

__all__ = [
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]
