from typing import get_args

from halfstep.train import data
from halfstep.train.config import DataConfig


def test_every_name_that_a_config_allows_has_a_loader():
    assert set(get_args(DataConfig.model_fields["name"].annotation)) == set(data._LOADERS)
