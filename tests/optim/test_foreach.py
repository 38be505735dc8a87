"""What optimizers of our own share."""

import torch

from halfstep.optim import foreach
from halfstep.optim.foreach import by_format, gradients, in_chunks, round_back, widened


def test_only_half_tensors_are_widened_and_rounded_back():
    half, single = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    wide = widened([half, single])
    assert wide[0].dtype == torch.float32
    assert wide[1] is single
    wide[0] += 2.0**-8  # a tie in bf16, which goes to the even 1
    wide[0][1] += 2.0**-8
    round_back([half, single], wide)
    assert half.tolist() == [1.0, 1.0 + 2.0**-7]


def test_gradients_are_fp32_at_least_and_lists_have_one_format_each():
    params = [torch.nn.Parameter(torch.ones(1, dtype=d)) for d in (torch.float16, torch.float64)]
    for param in params:
        param.grad = torch.ones_like(param)
    assert [grad.dtype for grad in gradients(params)] == [torch.float32, torch.float64]
    assert by_format([*params, params[0]]) == [[params[0], params[0]], [params[1]]]


def test_chunks_keep_the_order_and_end_before_they_are_too_large(monkeypatch):
    monkeypatch.setattr(foreach, "CHUNK_ELEMENTS", 4)
    tensors = [torch.empty(size) for size in (1, 3, 1, 9, 2, 2)]
    assert [[t.numel() for t in chunk] for chunk in in_chunks(tensors)] == [
        [1, 3],
        [1],
        [9],
        [2, 2],
    ]
    assert not list(in_chunks([]))
