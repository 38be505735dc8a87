"""The metadata of a sharded checkpoint may name what describes tensors, and calls nothing else."""

import pickle

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from halfstep.engine.checkpoints.metadata import refuse_code


class Asks:
    """Is pickled as a call of getattr, as Python before 3.11.4 pickles members of enumerations."""

    def __init__(self, owner, name):
        self.asked = owner, name

    def __reduce__(self):
        return getattr, self.asked


@pytest.fixture
def metadata(tmp_path):
    def write(thing):
        file = tmp_path / ".metadata"
        file.write_bytes(pickle.dumps(thing))
        return file

    return write


def test_a_member_of_an_enumeration_may_be_asked_for_by_name(metadata):
    refuse_code(metadata({"format": Asks(_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST")}))
    refuse_code(metadata([torch.Size([2, 3]), torch.float16]))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(_MEM_FORMAT_ENCODING, "__class__"), (_MEM_FORMAT_ENCODING, "mro"), (torch.Size, "count")],
)
def test_nothing_else_may_be_asked_for(metadata, owner, name):
    with pytest.raises(ValueError, match=f"it names '{name}' of .*no part of metadata"):
        refuse_code(metadata(Asks(owner, name)))


def test_a_function_may_not_be_named(metadata):
    with pytest.raises(ValueError, match=r"it names builtins\.print, which is no part"):
        refuse_code(metadata(print))
