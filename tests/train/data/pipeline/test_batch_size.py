import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfstep.errors import UserError
from halfstep.train.build.setup import set_up
from halfstep.train.config.files import load
from halfstep.train.data.pipeline.batch_size import propose, refuse
from halfstep.train.processes.processes import Processes

CPU = torch.device("cpu")


def digits(*options):
    """1,347 images for training."""
    return load("digits", [*options, "data.resolution=8", "device=cpu"])


@pytest.mark.parametrize(
    ("options", "images", "processes", "said"),
    [
        (
            ["batch_size=64"],
            60,
            1,
            "^batch_size is 64, but .* 60 images; .* batch_size=8, or .* 60$",
        ),
        (
            ["batch_size=1348"],
            1347,
            1,
            "is 1348, but .* has 1347 images; write .*=64, or at most 1347",
        ),
        (["batch_size=64", "drop_last=false"], 60, 1, "batch_size is 64, but .* 60 images"),
        (["batch_size=2"], 1, 1, "is 2, but the training set has 1 image; .* at most 1"),
        (["batch_size=32"], 60, 2, "is 32 for each of 2 processes, 64 .* 60 images; .* at most 30"),
        (["batch_size=1"], 3, 4, "is 1 for each of 4 processes, 4 .* 3 images; train with fewer"),
        (["batch_size=9", "data.train.limit=8"], 8, 1, r"has 8 images \(data.train.limit\); write"),
        (
            ["batch_size=8", "accumulate=4"],
            31,
            1,
            "^accumulate is 4 and batch_size is 8, but .* 31 images, .* 3 batches; .*accumulate=3",
        ),
        (["batch_size=8", "accumulate=5", "drop_last=false"], 31, 1, "31 images, .* 4 batches;"),
        (["batch_size=8", "accumulate=2"], 31, 2, "accumulate is 2 .* 16 together, .* 1 batch;"),
    ],
)
def test_a_batch_or_step_of_more_images_than_there_are_is_refused_with_both_numbers(
    options, images, processes, said
):
    with pytest.raises(UserError, match=said):
        refuse(digits(*options), images, processes)


@pytest.mark.parametrize(
    ("options", "images", "processes"),
    [
        (["batch_size=60"], 60, 1),
        (["batch_size=30"], 60, 2),
        (["batch_size=6", "accumulate=5"], 60, 2),
        # A step on all images, the last micro-batch of which is smaller.
        (["batch_size=8", "accumulate=4", "drop_last=false"], 31, 1),
    ],
)
def test_a_step_of_all_images_is_allowed(options, images, processes):
    refuse(digits(*options), images, processes)


@given(st.integers(2, 5000))
def test_the_proposal_is_allowed_and_leaves_several_steps_in_an_epoch(images):
    proposed = propose(images)
    refuse(digits("accumulate=1").model_copy(update={"batch_size": proposed}), images)
    assert proposed in {2, 4, 8, 16, 32, 64}
    assert images // proposed >= 8 or proposed <= 8


@pytest.mark.parametrize(
    ("options", "processes"),
    [
        (["batch_size=1348"], 1),
        (["batch_size=674"], 2),
        (["batch_size=674", "accumulate=2"], 1),
        (["batch_size=20", "data.train.limit=19"], 1),
    ],
)
def test_a_run_is_refused_before_its_model_is_built(options, processes):
    config = digits(*options, "model={name: 'timm:no_such_model'}")
    with pytest.raises(UserError, match=r"but the training set has (1347|19) image"):
        set_up(config, CPU, processes=Processes(size=processes))
