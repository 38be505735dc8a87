"""Adam whose averages are cast to bf16 to save memory."""

import torch
from torch.nn import functional

from doctor.loops import batches, classifier

CODE = "OPTIMIZER_STATE_IN_HALF"


class Lean(torch.optim.AdamW):
    """AdamW with its averages in another format."""

    def __init__(self, parameters, dtype: torch.dtype) -> None:
        super().__init__(parameters, lr=0.01, foreach=False)
        self.dtype = dtype

    def step(self) -> None:
        super().step()
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].to(self.dtype)


def train(dtype: torch.dtype) -> None:
    model = classifier()
    optimizer = Lean(model.parameters(), dtype)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def broken() -> None:
    train(torch.bfloat16)


def mended() -> None:
    train(torch.float32)


def healthy_with_a_factor_that_bf16_has() -> None:
    model = classifier()
    optimizer = Lean(model.parameters(), torch.bfloat16)
    optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    for images, labels in batches(4):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
