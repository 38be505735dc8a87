"""Features are divided by their sum, which overflows fp16."""

import torch
from torch.nn import functional

from doctor.loops import Around, batches, classifier, half_steps

CODE = "SUM_OVERFLOW"


def shares(features: torch.Tensor, dtype) -> torch.Tensor:
    sizes = features.abs() * 20000
    return features + (sizes / sizes.sum(-1, keepdim=True, dtype=dtype)).sqrt().to(features.dtype)


def train(dtype) -> None:
    half_steps(Around(lambda features: shares(features, dtype)))


def broken() -> None:
    train(torch.float16)


def mended() -> None:
    train(torch.float32)


def broken_by_a_count_that_a_loss_is_divided_by() -> None:
    def loss_function(outputs, labels):
        total = functional.cross_entropy(outputs.float(), labels, reduction="sum")
        return total / (outputs.half().repeat(3000, 1) * 0 + 1).sum()

    half_steps(Around(lambda features: features), loss_function)


def broken_in_a_norm_written_by_hand() -> None:
    def own(features):
        large = features.half() * 150
        return large / large.pow(2).sum(-1, keepdim=True).sqrt()

    half_steps(Around(own))


def healthy_for_small_sums() -> None:
    half_steps(
        Around(lambda features: features / (features.half().abs().sum(-1, keepdim=True) + 1))
    )


def healthy_in_an_infinity_that_saturates() -> None:
    def own(features):
        large = (features.half() * 1000).detach().exp()
        return features + 1 / (1 + large)

    half_steps(Around(own))


def of_totals(total, form: torch.dtype = torch.float16) -> None:
    """Add up rows of 20000 and more by their index."""
    half_steps(Around(lambda x: total((x.abs() + 1).to(form) * 2e4).float().expand(8, 16) * 1e-4))


def _rows_by_index(rows: torch.Tensor) -> torch.Tensor:
    to = torch.zeros(8, dtype=torch.long)
    return torch.zeros(1, 16, dtype=rows.dtype).index_add(0, to, rows)


def _rows_in_place(rows: torch.Tensor) -> torch.Tensor:
    to = torch.zeros(8, 16, dtype=torch.long)
    return torch.zeros(1, 16, dtype=rows.dtype).scatter_add_(0, to, rows)


def broken_by_index() -> None:
    of_totals(_rows_by_index)


def broken_by_index_in_place() -> None:
    of_totals(_rows_in_place)


def healthy_by_index_in_fp32() -> None:
    of_totals(_rows_in_place, torch.float32)


def healthy_by_index_of_small_rows() -> None:
    of_totals(lambda rows: _rows_by_index(rows / 1e4))


def of_prepared_inputs(prepare) -> None:
    """Train on inputs that the loop computes from counts in fp16."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for images, labels in batches(6):
        optimizer.zero_grad()
        counts = (images.abs() * 9000).half()
        functional.cross_entropy(model(prepare(counts)), labels).backward()
        optimizer.step()


def broken_before_the_model() -> None:
    of_prepared_inputs(
        lambda counts: counts.float() / counts.sum(dim=1, keepdim=True).float() * counts.shape[1]
    )


def healthy_before_the_model_in_fp32() -> None:
    of_prepared_inputs(
        lambda counts: counts.float() / counts.sum(1, keepdim=True, dtype=torch.float32) * 16
    )


def healthy_check_of_the_inputs() -> None:
    """The sum only shows whether numbers are finite, in a first and cheap look."""

    def prepare(counts: torch.Tensor) -> torch.Tensor:
        assert counts.sum().isfinite() or counts.isfinite().all()
        return counts.float() / 9000

    of_prepared_inputs(prepare)


def healthy_limit_of_the_sum() -> None:
    of_prepared_inputs(
        lambda counts: counts.float() / counts.sum(1, keepdim=True).clamp(max=60000).float()
    )
