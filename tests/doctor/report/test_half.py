"""What a diagnosis says of half precision that the loop's own calls do not show."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from doctor.loops import Around, batches, classifier, loss_of
from halfstep.doctor import Watch, diagnose


class Wrapped(nn.Module):
    """A model whose forward enters autocast itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = classifier()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(images).float()


def test_autocast_inside_a_model_counts_as_half_precision() -> None:
    model = Wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Watch() as watch:
        for images, labels in batches(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    diagnosis = diagnose(watch.close())
    assert not diagnosis.verdicts
    assert "nothing was computed in half precision" not in diagnosis.advice
    assert "run the program in fp32" in diagnosis.advice


def test_a_schedule_over_skips_is_a_consequence_of_the_overflow_that_makes_them() -> None:
    model = Around(lambda features: (features.abs() + 100).exp().clamp(max=1.0) * features)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = LambdaLR(optimizer, lambda step: 0.95**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Watch() as watch:
        for images, labels in batches(12):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, images, labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    diagnosis = diagnose(watch.close())
    assert [each.code for each in diagnosis.verdicts] == ["EXP_OVERFLOW"]
    assert "SCHEDULE_MOVES_OVER_SKIPS" in diagnosis.consequences
