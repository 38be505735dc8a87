"""What a config may say, where it is found, and what is wrong with it.

One class a section, the text under each field is its documentation. Values are checked strictly (a
string is not a number) and unknown keys are refused; `errors` turns what pydantic reports into one
line. Nothing here imports torch.
"""

from halfstep.train.config.schema import Config

__all__ = ["Config"]
