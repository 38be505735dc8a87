"""The fields of a config, how a config is found, and its errors.

Each section is a class; the text under each field is printed to users as its documentation. Values
are checked strictly (a string is not a number), and unknown keys are refused. `errors` converts
pydantic's errors to one line. Nothing here imports torch.
"""

from halfstep.train.config.schema import Config

__all__ = ["Config"]
