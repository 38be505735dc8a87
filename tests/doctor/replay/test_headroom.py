import torch

from halfstep.doctor.replay.headroom import Headroom


def test_the_constant_of_a_mask_is_not_near_overflow() -> None:
    headroom = Headroom()
    masked = torch.tensor([4.0, -8.0, torch.finfo(torch.float16).min]).half()
    headroom.take(masked, "scores")
    assert (headroom.largest, headroom.module) == (8.0, "scores")
    headroom.take(torch.tensor([65504.0]).half(), "large")
    assert headroom.bits == 0
