"""Which layers of a subject would multiply in FP8 on a GPU."""

from __future__ import annotations

import torch
from torch import nn

from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.native_fp8 import lines, samples_of_layers
from halfstep.mechanisms.float8.gain import Gains

from .test_forecast import subject


class Tokens(nn.Module):
    """Two linear layers on 4 tokens of each row, and a third on the row."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(4096, 4096), nn.Linear(4096, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        tokens = rows.flatten(1)[:, :1].expand(-1, 4 * 4096).unflatten(1, (4, 4096))
        return self.head(self.narrow(self.wide(tokens)).mean(1))


def test_layers_are_counted_with_their_samples_and_without_values():
    given = subject(Tokens())
    size = len(given.batches[0][0])
    counts = samples_of_layers(given)
    assert counts == {"wide": 4 * size, "narrow": 4 * size, "head": size}
    assert samples_of_layers(given, 1024)["wide"] == 4096
    assert not given.model.wide._forward_hooks
    gain = Gains.named("h200").gain(4096, 4096, 4096).value
    assert lines(given, [gpu("t4"), gpu("h200")], 1024) == [
        (
            "fp8 on H200 SXM 141GB: 1 of 3 layers would multiply in FP8, "
            f"{gain:.2f} times as fast as in bf16 (predicted)"
        )
    ]
    # The same is said once, for all GPUs that it is true of.
    assert lines(given, [gpu("h200"), gpu("t4"), gpu("b200")], 8) == [
        (
            "fp8 on H200 SXM 141GB, B200 SXM 180GB: 0 of 3 layers would multiply in FP8, because "
            "none is predicted to be faster in FP8 than in bf16"
        )
    ]
    assert lines(given, [gpu("t4")]) == []
