import pytest
from pydantic import TypeAdapter, ValidationError

from halfstep.train.config.schedule import (
    CosineConfig,
    MultiStepConfig,
    OneCycleConfig,
    PlateauConfig,
    ScheduleConfig,
    StepConfig,
)

SCHEDULE = TypeAdapter(ScheduleConfig)


@pytest.mark.parametrize(
    "config",
    [
        CosineConfig(name="cosine", warmup_epochs=5),
        OneCycleConfig(name="one-cycle", warmup_epochs=5),
        StepConfig(name="step"),
        MultiStepConfig(name="multistep", milestones=(30, 60.5)),
        PlateauConfig(name="plateau", metric="accuracy"),
    ],
    ids=lambda config: config.name,
)
def test_schedule_written_in_full_is_read_back(config):
    assert SCHEDULE.validate_python(config.model_dump(mode="json")) == config


def test_warm_up_is_given_once():
    with pytest.raises(ValidationError, match=r"warmup is 0\.1 and warmup_epochs is 5\.0; write"):
        CosineConfig(name="cosine", warmup=0.1, warmup_epochs=5)
    with pytest.raises(
        ValidationError, match=r"\(warmup: 0\.3 is the default and counts as not given\)"
    ):
        OneCycleConfig(name="one-cycle", warmup=0.1, warmup_epochs=5)
