"""The ledger of schedules: what it holds of the program's trainings."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from doctor.loops import batches, classifier
from halfstep.doctor import Watch
from halfstep.doctor.record.rates import LearningRates


def test_the_function_of_a_schedule_keeps_no_earlier_training_in_memory() -> None:
    class Training:
        def __init__(self, steps: int) -> None:
            self.model, self.steps = classifier(), steps
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.schedule = LambdaLR(self.optimizer, lambda move: max(0.0, 1 - move / self.steps))

        def run(self) -> None:
            for images, labels in batches(self.steps):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(images), labels).backward()
                self.optimizer.step()
                self.schedule.step()

    def train(steps: int) -> weakref.ref[Training]:
        training = Training(steps)
        training.run()
        return weakref.ref(training)

    alive = []
    with Watch() as watch:
        for steps in (4, 5, 6):
            alive.append(train(steps))
            gc.collect()
            assert sum(each() is not None for each in alive) <= 1
    schedules = watch.close().of(LearningRates).schedules
    assert [each.settles for each in schedules] == [4, 5, 6]
