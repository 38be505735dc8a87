"""Doctor in the `Trainer` of transformers: `pip install halfstep[transformers]`.

```python
from halfstep.transformers import WatchCallback

trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[WatchCallback()])
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from halfstep.doctor import watch

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from halfstep.doctor import Diagnosis, Session


class WatchCallback(TrainerCallback):
    """Watches `trainer.train` by doctor, and prints the diagnosis when it ends.

    If training raises, the diagnosis is printed when the program exits, or by `end()`.

    Args:
        quiet: Whether to print nothing at the end.

    Attributes:
        diagnosis: The diagnosis of the last training; None before it ends.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.diagnosis: Diagnosis | None = None
        self._quiet = quiet
        self._session: Session | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start to watch."""
        del args, state, control
        self.end()
        model: nn.Module = kwargs["model"]
        optimizer: Optimizer = kwargs["optimizer"]
        # What Accelerate wraps around an optimizer passes `step` on to it.
        self._session = watch(model, getattr(optimizer, "optimizer", optimizer), quiet=self._quiet)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop to watch, and diagnose."""
        del args, state, control, kwargs
        self.end()

    def end(self) -> None:
        """Stop watching, and print the diagnosis."""
        session, self._session = self._session, None
        if session is not None:
            self.diagnosis = session.diagnose()
